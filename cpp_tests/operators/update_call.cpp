#include "operators/update_call.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/values.h"
#include "mamba/selective_scan.h"

namespace mamba::tests {

namespace {

std::optional<Tensor> optional(const Tensor& x) {
  return x.defined() ? std::optional<Tensor>(x) : std::nullopt;
}

Tensor per_head(const Tensor& x, int64_t heads) {
  const Tensor grouped = x.dim() == 2 ? x.unsqueeze(1) : x;
  return grouped.repeat_interleave(heads / grouped.size(1), 1);  // (batch, heads, dstate)
}

}  // namespace

std::vector<std::pair<const char*, Tensor*>> UpdateCall::tensors() {
  return {{"state", &state},
          {"x", &x},
          {"dt", &dt},
          {"A", &A},
          {"B", &B},
          {"C", &C},
          {"D", &D},
          {"z", &z},
          {"dt_bias", &dt_bias},
          {"state_batch_indices", &state_batch_indices}};
}

std::vector<c10::IValue> UpdateCall::values() const {
  return {
      state, x, dt, A, B, C, optional(D), optional(z), optional(dt_bias), dt_softplus, optional(state_batch_indices)};
}

UpdateCall UpdateCall::clone() const {
  UpdateCall copy = *this;
  copy.state = state.clone();
  return copy;
}

UpdateCall make_update(const UpdateShape& shape, const Target& target, uint64_t seed) {
  return make_update(shape, target, seed, target.dtype == at::kDouble ? at::kDouble : at::kFloat);
}

UpdateCall make_update(const UpdateShape& shape, const Target& target, uint64_t seed, at::ScalarType state_dtype) {
  Random random(seed);
  const at::ScalarType parameter = target.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto normal = [&](std::vector<int64_t> sizes, at::ScalarType dtype) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    std::vector<double> numbers(static_cast<size_t>(count));
    for (double& x : numbers) x = random.normal();
    return at::from_blob(numbers.data(), sizes, at::kDouble).to(target.device, dtype, false, /*copy=*/true);
  };
  const auto with = [&](std::vector<int64_t> front, bool has_states) {
    front.insert(front.end(), shape.channels.begin(), shape.channels.end());
    if (has_states) front.push_back(shape.dstate);
    return front;
  };
  const std::vector<int64_t> coefficient = shape.groups == 0
                                               ? std::vector<int64_t>{shape.batch, shape.dstate}
                                               : std::vector<int64_t>{shape.batch, shape.groups, shape.dstate};
  UpdateCall call;
  call.state = normal(with({shape.slots}, true), state_dtype);
  call.x = normal(with({shape.batch}, false), target.dtype);
  call.dt = normal(with({shape.batch}, false), target.dtype);
  call.A = -0.2 - normal(with({}, true), parameter).abs();
  call.B = normal(coefficient, target.dtype);
  call.C = normal(coefficient, target.dtype);
  call.D = normal(with({}, false), parameter);
  call.z = normal(with({shape.batch}, false), target.dtype);
  call.dt_bias = normal(with({}, false), parameter);
  return call;
}

Tensor run(UpdateCall& c) {
  return selective_state_update(c.state, c.x, c.dt, c.A, c.B, c.C, optional(c.D), optional(c.z), optional(c.dt_bias),
                                c.dt_softplus, optional(c.state_batch_indices));
}

OutAndState oracle(const UpdateCall& call) {
  UpdateCall c = call;
  for (const auto& [name, x] : c.tensors()) {
    if (x->defined()) *x = x->cpu();
  }
  const int64_t heads = c.x.size(1);
  const auto wide = [&](const Tensor& x) { return x.to(at::kDouble); };
  // (batch, heads, dstate), with head_dim before dstate where there is one.
  const auto coefficient = [&](const Tensor& x) {
    const Tensor y = per_head(wide(x), heads);
    return c.x.dim() == 3 ? y.unsqueeze(2) : y;
  };
  const Tensor x = wide(c.x), B = coefficient(c.B), C = coefficient(c.C), A = wide(c.A);
  Tensor dt = wide(c.dt);
  if (c.dt_bias.defined()) dt = dt + wide(c.dt_bias);
  if (c.dt_softplus) dt = at::softplus(dt, 1, 20);
  Tensor state = wide(c.state).clone(), out = at::zeros_like(x);
  for (int64_t row = 0; row < x.size(0); ++row) {
    const int64_t slot = c.state_batch_indices.defined() ? c.state_batch_indices[row].item<int64_t>() : row;
    if (slot < 0 || slot >= state.size(0)) continue;
    const Tensor step = dt[row].unsqueeze(-1);
    state[slot].copy_((step * A).exp() * state[slot] + step * B[row] * x[row].unsqueeze(-1));
    Tensor y = (C[row] * state[slot]).sum(-1);
    if (c.D.defined()) y = y + wide(c.D) * x[row];
    if (c.z.defined()) y = y * at::silu(wide(c.z)[row]);
    out[row].copy_(y);
  }
  return {out, state};
}

}  // namespace mamba::tests
