#include "plan.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "mamba/kernels/config.h"
#include "tensors.h"

namespace mamba {

namespace {

at::ScalarType state_type(const ScanArgs& args) {
  return args.A.is_complex() ? args.A.scalar_type() : wide_type(args.u);
}

}  // namespace

ScanOutputs allocate_outputs(const ScanArgs& args, bool with_checkpoints) {
  const Tensor& u = args.u;
  const bool is_packed = args.cu_seqlens.defined();
  const c10::SymInt sequences = is_packed ? args.cu_seqlens.sym_size(0) - 1 : u.sym_size(0);
  const c10::SymInt dim = u.sym_size(1), dstate = args.A.dim() == 1 ? c10::SymInt(1) : args.A.sym_size(1);
  const at::TensorOptions state = u.options().dtype(state_type(args));

  ScanOutputs outputs;
  outputs.out = is_packed ? at::zeros_like(u) : at::empty_like(u);  // tokens may lie outside every sequence
  outputs.last_state = at::empty_symint({sequences, dim, dstate}, state);
  if (with_checkpoints) {
    const c10::SymInt slots = kernels::checkpoint_slots(u.sym_size(2), is_packed ? sequences : c10::SymInt(0));
    outputs.checkpoints = is_packed ? at::zeros_symint({u.sym_size(0), slots * dstate, dim}, state)  // as may slots
                                    : at::empty_symint({u.sym_size(0), slots * dstate, dim}, state);
  }
  return outputs;
}

GradientArray allocate_gradients(const ScanGradArgs& args) {
  const GradientArray inputs = differentiable(args.scan);
  GradientArray gradients;
  for (size_t i = 0; i < kGradients; ++i) {
    const bool is_wanted = args.mask[i] && inputs[i].defined();
    const bool has_gaps = args.scan.cu_seqlens.defined() && (i == kU || i == kDelta || i == kZ);
    if (is_wanted) {
      gradients[i] = has_gaps ? at::zeros_like(inputs[i]) : at::empty_like(inputs[i]);
    } else {
      gradients[i] = at::empty({0}, args.scan.u.options());
    }
  }
  return gradients;
}

ScanPlan::ScanPlan(const ScanArgs& args, const ScanOutputs& outputs) : args_(args), outputs_(outputs) {
  const at::ScalarType wide = wide_type(args.u), state = state_type(args);
  const bool is_per_channel = args.A.dim() == 1;
  args_.A = dense(is_per_channel ? args.A.unsqueeze(1) : args.A, state);
  for (Tensor* x : {&args_.B, &args_.C}) {
    if (x->dim() == 3) *x = x->unsqueeze(is_per_channel ? 2 : 1);
  }
  args_.D = dense(args.D, wide);
  args_.delta_bias = dense(args.delta_bias, wide);
  args_.initial_state = dense(args.initial_state, state);
  args_.cu_seqlens = dense(args.cu_seqlens, at::kLong);

  kernels::ScanParams& p = params_;
  p.activation_type = kernel_type(args.u.scalar_type());
  p.is_complex = args.A.is_complex();
  p.delta_softplus = args.delta_softplus;
  p.reverse = args.reverse;
  p.batch = args.u.size(0);
  p.dim = args.u.size(1);
  p.length = args.u.size(2);
  p.dstate = args_.A.size(1);
  p.sequences = args_.cu_seqlens.defined() ? args_.cu_seqlens.size(0) - 1 : p.batch;
  p.cu_seqlens = static_cast<const int64_t*>(data(args_.cu_seqlens));
  p.u = activation(args.u);
  p.delta = activation(args.delta);
  p.z = activation(args.z);
  p.A = data(args_.A);
  p.B = coefficient(args_.B);
  p.C = coefficient(args_.C);
  p.D = data(args_.D);
  p.delta_bias = data(args_.delta_bias);
  p.initial_state = data(args_.initial_state);

  p.out = activation(outputs.out);
  p.last_state = data(outputs.last_state);
  p.checkpoints = data(outputs.checkpoints);
  p.checkpoint_slots = kernels::checkpoint_slots(p.length, p.cu_seqlens ? p.sequences : int64_t{0});
}

kernels::Coefficient ScanPlan::coefficient(Tensor& x) const {
  kernels::Coefficient c;
  c.is_constant = x.dim() == 2;
  const at::ScalarType state = args_.A.scalar_type();
  if (c.is_constant || args_.A.is_complex()) x = x.to(state);
  c.is_state_type = c.is_constant || x.scalar_type() == state;
  c.data = data(x);
  if (c.is_constant) {
    c.groups = x.size(0);
    c.group_stride = x.stride(0);
    c.state_stride = x.stride(1);
  } else {
    c.groups = x.size(1);
    c.batch_stride = x.stride(0);
    c.group_stride = x.stride(1);
    c.state_stride = x.stride(2);
    c.length_stride = x.stride(3);
  }
  return c;
}

ScanGradPlan::ScanGradPlan(const ScanGradArgs& args, const GradientArray& gradients, Sums form)
    : scan_(args.scan, ScanOutputs{Tensor(), Tensor(), args.checkpoints.contiguous()}),
      state_type_(state_type(args.scan)),
      form_(form),
      gradients_(gradients),
      dout_(args.dout),
      dlast_state_(dense(args.dlast_state, state_type_)) {
  const kernels::ScanParams& p = scan_.params();
  const at::ScalarType wide = wide_type(args.scan.u);
  params_.scan = p;
  params_.dout = activation(dout_);
  params_.dlast_state = data(dlast_state_);
  params_.du = activation(gradients[kU]);
  params_.ddelta = activation(gradients[kDelta]);
  params_.dz = activation(gradients[kZ]);
  params_.dA = sums(kA, p.sequences, {p.dim, p.dstate}, state_type_);
  params_.dB = coefficient_sums(kB, p.B);
  params_.dC = coefficient_sums(kC, p.C);
  params_.dD = sums(kD, p.sequences, {p.dim}, wide);
  params_.ddelta_bias = sums(kDeltaBias, p.sequences, {p.dim}, wide);
  dinitial_state_ = prepared({p.sequences, p.dim, p.dstate}, state_type_);
  params_.dinitial_state = data(dinitial_state_);
}

bool ScanGradPlan::is_own(const Tensor& gradient, at::ScalarType type) {
  return gradient.scalar_type() == type && gradient.is_contiguous();
}

Tensor ScanGradPlan::prepared(c10::IntArrayRef shape, at::ScalarType type) const {
  const at::TensorOptions options = gradients_[kU].options().dtype(type);
  return form_ == Sums::kWhole ? at::empty(shape, options) : at::zeros(shape, options);
}

void* ScanGradPlan::sums(Gradient gradient, int64_t partials, c10::IntArrayRef shape, at::ScalarType type) {
  const Tensor& to = gradients_[gradient];
  if (to.numel() == 0) return nullptr;
  if (is_own(to, type) && (form_ == Sums::kWhole || partials == 1)) {
    return data(form_ == Sums::kWhole ? to : to.zero_());
  }
  std::vector<int64_t> sizes = {form_ == Sums::kWhole ? 1 : partials};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  sums_.push_back({gradient, prepared(sizes, type)});
  return data(sums_.back().partial);
}

void* ScanGradPlan::coefficient_sums(Gradient gradient, const kernels::Coefficient& x) {
  const kernels::ScanParams& p = params_.scan;
  const int64_t partials = kernels::partial_sums(p, x);
  if (x.is_constant) return sums(gradient, partials, {p.dim, p.dstate}, state_type_);
  return sums(gradient, partials, {p.batch, x.groups, p.dstate, p.length}, state_type_);
}

void ScanGradPlan::finish() {
  for (const Sum& sum : sums_) write(sum.gradient, sum.partial.select(0, 0));
  if (gradients_[kInitialState].numel() > 0) write(kInitialState, dinitial_state_);
}

void ScanGradPlan::write(Gradient gradient, const Tensor& value) const {
  const Tensor& to = gradients_[gradient];
  const Tensor real = to.is_complex() || !value.is_complex() ? value : at::real(value);
  to.copy_(real.view(to.sizes()));
}

UpdatePlan::UpdatePlan(const UpdateArgs& args, const Tensor& out) {
  // The headless form is the one of head_dim 1.
  const bool has_heads = args.x.dim() == 3;
  const at::ScalarType wide = wide_type(args.x), activation = args.x.scalar_type();
  const auto per_row = [&](const Tensor& x) -> kernels::UpdateParams::PerRow {
    if (!x.defined()) return {};
    const at::IntArrayRef strides = x.strides();
    return {data(x), strides[0], strides[1], has_heads ? strides[2] : 0};
  };
  const auto per_channel = [&](const Tensor& given, Tensor& converted,
                               bool has_states) -> kernels::UpdateParams::PerChannel {
    if (!given.defined()) return {};
    const Tensor& x = as_type(given, wide, converted);
    const at::IntArrayRef strides = x.strides();
    return {data(x), strides[0], has_heads ? strides[1] : 0, has_states ? strides.back() : 0};
  };
  const auto coefficient = [&](const Tensor& given, Tensor& converted) -> kernels::UpdateParams::RowCoefficient {
    const Tensor& x = given.scalar_type() == activation ? given : as_type(given, wide, converted);
    const at::IntArrayRef strides = x.strides();
    const bool has_groups = x.dim() == 3;
    return {data(x),        has_groups ? x.size(1) : 1, strides[0], has_groups ? strides[1] : 0,
            strides.back(), x.scalar_type() == wide};
  };

  kernels::UpdateParams& p = params_;
  p.activation_type = kernel_type(activation);
  p.state_type = kernel_type(args.state.scalar_type());
  p.dt_softplus = args.dt_softplus;
  p.rows = args.x.size(0);
  p.heads = args.x.size(1);
  p.head_dim = has_heads ? args.x.size(2) : 1;
  p.dstate = args.state.size(-1);
  p.slots = args.state.size(0);
  const at::IntArrayRef strides = args.state.strides();
  p.state = {args.state.mutable_data_ptr(), strides[0], strides[1], has_heads ? strides[2] : 0, strides.back()};
  p.slot_of_row = slot_of_row(value(args.state_batch_indices));
  p.x = per_row(args.x);
  p.dt = per_row(args.dt);
  p.z = per_row(value(args.z));
  p.out = per_row(out);
  p.A = per_channel(args.A, A_, true);
  p.B = coefficient(args.B, B_);
  p.C = coefficient(args.C, C_);
  p.D = per_channel(value(args.D), D_, false);
  p.dt_bias = per_channel(value(args.dt_bias), dt_bias_, false);
}

}  // namespace mamba
