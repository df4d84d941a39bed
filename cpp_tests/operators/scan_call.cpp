#include "operators/scan_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/real.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>

#include "kernels/values.h"
#include "mamba/selective_scan.h"

namespace mamba::tests {

namespace {

constexpr std::array<at::ScalarType, 4> kDtypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

std::optional<Tensor> optional(const Tensor& x) {
  return x.defined() ? std::optional<Tensor>(x) : std::nullopt;
}

at::ScalarType complex_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
}

/// (batch, dim, length) and the like from numbers in row-major order; undefined for an absent argument.
Tensor tensor(const Numbers& numbers, at::IntArrayRef sizes, at::ScalarType dtype) {
  Tensor x = at::empty(sizes, at::kComplexDouble);
  if (x.numel() > 0) std::memcpy(x.mutable_data_ptr(), numbers.data(), numbers.size() * sizeof(Number));
  return (at::isComplexType(dtype) ? x : at::real(x)).to(dtype).contiguous();
}

Tensor wide(const Tensor& x) {
  return x.to(x.is_complex() ? at::kComplexDouble : at::kDouble);
}

/// B or C for every channel: (batch, dim, dstate, length), or broadcastable to it.
Tensor for_every_channel(const Tensor& x, bool is_per_channel, int64_t dim) {
  const Tensor w = wide(x);
  if (w.dim() == 2) return w.unsqueeze(0).unsqueeze(-1);
  if (w.dim() == 3) return w.unsqueeze(is_per_channel ? 2 : 1);
  const int64_t repeats = w.size(1) > 0 ? dim / w.size(1) : 0;
  return w.repeat_interleave(repeats, 1);
}

}  // namespace

std::string name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kDouble:
      return "float64";
    default:
      return "float32";
  }
}
std::string name_of(const Target& target) {
  return c10::DeviceTypeName(target.device, /*lower_case=*/true) + "_" + name_of(target.dtype);
}
std::ostream& operator<<(std::ostream& out, const Target& target) {
  return out << name_of(target);
}

std::vector<Target> cpu_targets() {
  std::vector<Target> targets;
  for (const at::ScalarType dtype : kDtypes) targets.push_back({at::kCPU, dtype});
  return targets;
}
std::vector<Target> cuda_targets() {
  std::vector<Target> targets;
  for (const at::ScalarType dtype : kDtypes) targets.push_back({at::kCUDA, dtype});
  return targets;
}

bool has_device(const Target& target) {
  return target.device == at::kCPU ||
         (c10::impl::hasDeviceGuardImpl(target.device) && c10::impl::VirtualGuardImpl(target.device).deviceCount() > 0);
}

std::array<std::pair<const char*, Tensor*>, 9> ScanCall::differentiable() {
  return {{{"u", &u},
           {"delta", &delta},
           {"A", &A},
           {"B", &B},
           {"C", &C},
           {"D", &D},
           {"z", &z},
           {"delta_bias", &delta_bias},
           {"initial_state", &initial_state}}};
}

std::vector<c10::IValue> ScanCall::values() const {
  return {u,
          delta,
          A,
          B,
          C,
          optional(D),
          optional(z),
          optional(delta_bias),
          delta_softplus,
          optional(initial_state),
          optional(cu_seqlens),
          reverse};
}

const Case& case_named(const std::string& name) {
  for (const Case& c : case_table()) {
    if (c.name == name) return c;
  }
  throw std::out_of_range("no case is named " + name);
}

ScanCall make_call(const Case& c, const Target& target, uint64_t seed) {
  return make_call(c, target, seed, target.dtype == at::kDouble ? at::kDouble : at::kFloat);
}

ScanCall make_call(const Case& c, const Target& target, uint64_t seed, at::ScalarType parameter) {
  const ScanValues v = random_values(c, seed);
  const at::ScalarType state = c.is_complex() ? complex_of(target.dtype) : parameter;
  const auto coefficient = [&](const CoefficientForm& form, const Numbers& numbers) {
    const bool is_complex = c.is_complex() && !form.is_real;
    if (form.form == Form::kConstant) return tensor(numbers, {c.dim, c.dstate}, is_complex ? state : parameter);
    const at::ScalarType dtype = is_complex ? state : target.dtype;
    if (form.form == Form::kGrouped) return tensor(numbers, {c.batch, form.groups, c.dstate, c.length}, dtype);
    const int64_t rows = c.A == Transition::kPerChannel ? c.dim : c.dstate;
    return tensor(numbers, {c.batch, rows, c.length}, dtype);
  };
  const std::array<int64_t, 3> activation = {c.batch, c.dim, c.length};
  const std::vector<int64_t> A_sizes =
      c.A == Transition::kPerChannel ? std::vector<int64_t>{c.dim} : std::vector<int64_t>{c.dim, c.dstate};

  ScanCall call;
  call.u = tensor(v.u, activation, target.dtype);
  call.delta = tensor(v.delta, activation, target.dtype);
  call.A = tensor(v.A, A_sizes, state);
  call.B = coefficient(c.B, v.B);
  call.C = coefficient(c.C, v.C);
  if (c.has(kD)) call.D = tensor(v.D, {c.dim}, parameter);
  if (c.has(kZ)) call.z = tensor(v.z, activation, target.dtype);
  if (c.has(kDeltaBias)) call.delta_bias = tensor(v.delta_bias, {c.dim}, parameter);
  call.delta_softplus = c.has(kSoftplus);
  if (c.has(kInitialState)) call.initial_state = tensor(v.initial_state, {c.sequences(), c.dim, c.dstate}, state);
  if (c.is_packed()) {
    call.cu_seqlens = at::empty({c.sequences() + 1}, at::kLong);
    std::memcpy(call.cu_seqlens.mutable_data_ptr(), c.cu_seqlens.data(), call.cu_seqlens.nbytes());
    if (seed % 2 == 0) call.cu_seqlens = call.cu_seqlens.to(at::kInt);
  }
  call.reverse = c.has(kReverse);
  return call.to(target.device);
}

OutAndState run(const ScanCall& c) {
  return selective_scan_with_state(c.u, c.delta, c.A, c.B, c.C, optional(c.D), optional(c.z), optional(c.delta_bias),
                                   c.delta_softplus, optional(c.initial_state), optional(c.cu_seqlens), c.reverse);
}

Tensor run_scan(const ScanCall& c) {
  return selective_scan(c.u, c.delta, c.A, c.B, c.C, optional(c.D), optional(c.z), optional(c.delta_bias),
                        c.delta_softplus, optional(c.initial_state), optional(c.cu_seqlens), c.reverse);
}

OutAndState oracle(const ScanCall& call) {
  const ScanCall c = call.to(at::kCPU);
  const int64_t dim = c.u.size(1), length = c.u.size(2);
  const bool is_per_channel = c.A.dim() == 1;
  const Tensor u = wide(c.u), A = wide(is_per_channel ? c.A.unsqueeze(1) : c.A);
  Tensor delta = wide(c.delta);
  if (c.delta_bias.defined()) delta = delta + wide(c.delta_bias).unsqueeze(-1);
  if (c.delta_softplus) delta = at::softplus(delta, 1, 20);
  const Tensor decays = (delta.unsqueeze(2) * A.unsqueeze(-1)).exp();  // (batch, dim, dstate, length)
  const Tensor inputs = ((delta * u).unsqueeze(2) * for_every_channel(c.B, is_per_channel, dim)).expand_as(decays);
  const std::vector<Tensor> a = decays.unbind(-1), b = inputs.unbind(-1);

  const bool is_packed = c.cu_seqlens.defined();
  const Tensor bounds = is_packed ? c.cu_seqlens.to(at::kLong) : Tensor();
  const int64_t sequences = is_packed ? bounds.size(0) - 1 : 1;
  std::vector<Tensor> h(static_cast<size_t>(length), at::zeros({u.size(0), dim, A.size(1)}, A.options())), last;
  std::vector<bool> is_inside(static_cast<size_t>(length));
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t start = is_packed ? bounds[i].item<int64_t>() : 0;
    const int64_t stop = is_packed ? bounds[i + 1].item<int64_t>() : length;
    Tensor state = at::zeros({u.size(0), dim, A.size(1)}, A.options());
    if (c.initial_state.defined()) state = wide(is_packed ? c.initial_state.narrow(0, i, 1) : c.initial_state);
    for (int64_t step = start; step < stop; ++step) {
      const auto t = static_cast<size_t>(c.reverse ? start + stop - 1 - step : step);
      state = a[t] * state + b[t];
      h[t] = state;
      is_inside[t] = true;
    }
    last.push_back(state);
  }
  const Tensor last_state = last.empty() ? at::zeros({0, dim, A.size(1)}, A.options()) : at::cat(last);
  if (length == 0) return {at::zeros_like(u), last_state};

  Tensor y = (for_every_channel(c.C, is_per_channel, dim) * at::stack(h, -1)).sum(2);
  if (y.is_complex()) y = 2 * at::real(y);
  if (c.D.defined()) y = y + wide(c.D).unsqueeze(-1) * u;
  if (c.z.defined()) y = y * at::silu(wide(c.z));
  Tensor mask = at::empty({length}, at::kBool);
  for (int64_t t = 0; t < length; ++t) mask[t] = static_cast<bool>(is_inside[static_cast<size_t>(t)]);
  return {at::where(mask, y, 0), last_state};
}

std::vector<c10::IValue> call_by_name(const std::string& name, std::vector<c10::IValue> stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").callBoxed(stack);
  return stack;
}

std::vector<Tensor> gradients(ScanCall call, OutAndState (*function)(const ScanCall&)) {
  std::vector<Tensor> inputs;
  for (const auto& [name, x] : call.differentiable()) {
    if (!x->defined()) continue;
    *x = x->detach().requires_grad_();
    inputs.push_back(*x);
  }
  const auto [out, last_state] = function(call);
  std::vector<Tensor> outputs, weights;
  for (const Tensor& x : {out, last_state}) {
    if (!x.requires_grad()) continue;
    Random random(11);
    const Numbers numbers = random.normals(x.numel(), x.is_complex());
    const at::ScalarType exact = x.is_complex() ? at::kComplexFloat : at::kBFloat16;  // the same in both runs
    outputs.push_back(x);
    weights.push_back(tensor(numbers, x.sizes(), exact).to(x.device(), x.scalar_type()));
  }
  const auto found = torch::autograd::grad(outputs, inputs, weights, /*retain_graph=*/std::nullopt,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  std::vector<Tensor> all;
  size_t next = 0;
  for (const auto& [name, x] : call.differentiable()) {
    if (!x->defined()) {
      all.emplace_back();
      continue;
    }
    const Tensor& gradient = found[next++];
    all.push_back(gradient.defined() ? gradient : at::zeros_like(*x));
  }
  return all;
}

ScanCall widened(const ScanCall& call) {
  return call.with(
      [](const Tensor& x) { return x.is_floating_point() || x.is_complex() ? wide(x.detach()).clone() : x; });
}

}  // namespace mamba::tests
