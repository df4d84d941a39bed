#include "conv/plan.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "tensors.h"

namespace mamba::conv {

namespace {

/// Tokens outside every sequence give 0. The CUDA kernels write that themselves.
Tensor empty_for_tokens(const ConvArgs& args, const Tensor& like) {
  return args.cu_seqlens.defined() && !like.is_cuda() ? at::zeros_like(like) : at::empty_like(like);
}

}  // namespace

OutAndState allocate_outputs(const ConvArgs& args) {
  const Tensor& x = args.x;
  const c10::SymInt rows = args.cu_seqlens.defined() ? args.cu_seqlens.sym_size(0) - 1 : x.sym_size(0);
  const Tensor out = empty_for_tokens(args, x);
  return {out, at::empty_symint({rows, x.sym_size(1), args.weight.sym_size(1) - 1}, x.options())};
}

GradientArray allocate_gradients(const ConvGradArgs& args) {
  const GradientArray inputs = differentiable(args.conv);
  GradientArray gradients;
  for (size_t i = 0; i < kGradients; ++i) {
    if (!args.mask[i] || !inputs[i].defined()) {
      gradients[i] = at::empty({0}, args.conv.x.options());
    } else if (i == kX) {
      gradients[i] = empty_for_tokens(args.conv, inputs[i]);
    } else {
      gradients[i] = at::empty_like(inputs[i]);
    }
  }
  return gradients;
}

ConvPlan::ConvPlan(const ConvArgs& args, const OutAndState& outputs) : args_(args) {
  const at::ScalarType wide = wide_type(args.x);
  args_.weight = dense(args.weight, wide);
  args_.bias = dense(args.bias, wide);
  args_.cu_seqlens = dense(args.cu_seqlens, at::kLong);

  kernels::ConvParams& p = params_;
  p.activation_type = kernel_type(args.x.scalar_type());
  p.silu = args.silu;
  p.batch = args.x.size(0);
  p.dim = args.x.size(1);
  p.length = args.x.size(2);
  p.width = args.weight.size(1);
  p.sequences = args.cu_seqlens.defined() ? args.cu_seqlens.size(0) - 1 : p.batch;
  p.cu_seqlens = static_cast<const int64_t*>(data(args_.cu_seqlens));
  p.weight = data(args_.weight);
  p.bias = data(args_.bias);
  p.x = activation(args.x);
  p.initial_state = activation(args.initial_state);
  p.out = activation(std::get<0>(outputs));
  p.last_state = activation(std::get<1>(outputs));
}

ConvGradPlan::ConvGradPlan(const ConvGradArgs& args, const GradientArray& gradients, Sums form)
    : conv_(args.conv, {Tensor(), Tensor()}), gradients_(gradients), dout_(args.dout), dlast_state_(args.dlast_state) {
  const kernels::ConvParams& p = conv_.params();
  params_.conv = p;
  if (form == Sums::kPartial && kernels::cpu::conv_dpre_work(params_) > 0) {
    dpre_ = at::empty(args.conv.x.sizes(), args.conv.x.options().dtype(wide_type(args.conv.x)));
  }
  params_.dout = activation(dout_);
  params_.dlast_state = activation(dlast_state_);
  params_.dpre = data(dpre_);
  params_.dx = activation(gradients[kX]);
  params_.dinitial_state = activation(gradients[kInitialState]);
  params_.dweight = sums(kWeight, form, {p.sequences, p.dim, p.width});
  params_.dbias = sums(kBias, form, {p.sequences, p.dim});
}

void* ConvGradPlan::sums(Gradient gradient, Sums form, c10::IntArrayRef shape) {
  const Tensor& to = gradients_[gradient];
  if (to.numel() == 0) return nullptr;
  const at::ScalarType wide = params_.conv.activation_type == kernels::ScalarType::kFloat64 ? at::kDouble : at::kFloat;
  if (form == Sums::kWhole && to.scalar_type() == wide && to.is_contiguous()) return data(to);
  std::vector<int64_t> sizes = shape.vec();
  if (form == Sums::kWhole) sizes[0] = 1;
  sums_.emplace_back(gradient, at::empty(sizes, to.options().dtype(wide)));
  return data(sums_.back().second);
}

Tensor ConvGradPlan::total_of(const Tensor& partial) {
  return at::zeros(partial.sizes().slice(1), partial.options());
}

ConvUpdatePlan::ConvUpdatePlan(const ConvUpdateArgs& args, const Tensor& out)
    : weight_(dense(args.weight, wide_type(args.x))), bias_(dense(value(args.bias), wide_type(args.x))) {
  kernels::ConvUpdateParams& p = params_;
  p.activation_type = kernel_type(args.x.scalar_type());
  p.silu = args.silu;
  p.rows = args.x.size(0);
  p.dim = args.x.size(1);
  p.width = args.weight.size(1);
  p.slots = args.conv_state.size(0);
  p.slot_of_row = mamba::slot_of_row(value(args.state_batch_indices));
  p.weight = data(weight_);
  p.bias = data(bias_);
  p.state = activation(args.conv_state);
  p.x = {data(args.x), args.x.stride(0), args.x.stride(1), 0};
  p.out = {data(out), out.stride(0), out.stride(1), 0};
}

}  // namespace mamba::conv
