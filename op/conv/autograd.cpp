// Autograd of the convolution.
#include <torch/library.h>

#include "conv/checks.h"
#include "conv/conv_math.h"
#include "node.h"

namespace mamba::conv {

namespace {

/// Holds the four differentiable inputs and cu_seqlens; its flag is silu.
class CausalConv1dBackward : public OperatorNode<CausalConv1dBackward> {
 public:
  std::string name() const override { return "CausalConv1dBackward"; }

  static variable_list backward(const variable_list& gradients, const NodeContext& context) {
    variable_list wanted_only(kGradients);
    if (!gradients[0].defined() && !gradients[1].defined()) return wanted_only;
    const variable_list& x = context.saved;
    ConvGradArgs args{gradients[0], gradients[1], {x[kX], x[kWeight], x[kBias], x[kInitialState], x[kGradients]}, {}};
    args.conv.silu = context.flags[0];
    for (const size_t i : c10::irange(kGradients)) args.mask[i] = context.wanted[i] && x[i].defined();
    const auto [dx, dweight, dbias, dinitial_state] = call_causal_conv1d_bwd(args);
    const GradientArray result = {dx, dweight, dbias, dinitial_state};
    for (const size_t i : c10::irange(kGradients)) {
      if (args.mask[i]) wanted_only[i] = result[i];
    }
    return wanted_only;
  }
};

OutAndState causal_conv1d(const ConvArgs& args) {
  const GradientArray inputs = differentiable(args);
  if (any_has_tangent(inputs)) {
    check_conv("causal_conv1d", args);
    return conv_math(args);
  }
  std::shared_ptr<CausalConv1dBackward> node;
  if (any_requires_grad(inputs)) {
    node = CausalConv1dBackward::make(inputs, {args.silu});
    node->save(args.cu_seqlens);
  }
  auto [out, last_state] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_causal_conv1d(args);
  }();
  if (node) {
    torch::autograd::set_history(out, node);
    torch::autograd::set_history(last_state, node);
  }
  return {out, last_state};
}

/// A gradient that may be differentiated again, or carries tangents, comes from the differentiable formula.
BackwardResult causal_conv1d_bwd(const ConvGradArgs& args) {
  std::vector<Tensor> inputs = {args.dout, args.dlast_state};
  for (const Tensor& x : differentiable(args.conv)) inputs.push_back(x);
  if (any_has_tangent(inputs) || any_requires_grad(inputs)) {
    check_conv_grad(args);
    return as_tuple(conv_grad_math(args));
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_causal_conv1d_bwd(args);
}

Tensor causal_conv1d_update(const ConvUpdateArgs& args) {
  const std::array<std::reference_wrapper<const Tensor>, 4> inputs = {args.conv_state, args.x, args.weight,
                                                                      value(args.bias)};
  TORCH_CHECK_NOT_IMPLEMENTED(
      !any_requires_grad(inputs) && !any_has_tangent(inputs),
      "causal_conv1d_update: expected inputs that need no derivatives, for conv_state changes in place, but got one "
      "that requires grad or carries a tangent; use causal_conv1d with L = 1, or torch.no_grad()");
  const Tensor out = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_causal_conv1d_update(args);
  }();
  torch::autograd::impl::bump_version(args.conv_state);
  return out;
}

}  // namespace

}  // namespace mamba::conv

TORCH_LIBRARY_IMPL(mamba, Autograd, m) {
  m.impl("causal_conv1d", mamba::conv::conv_entry<mamba::conv::causal_conv1d>);
  m.impl("causal_conv1d_update", mamba::conv::conv_update_entry<mamba::conv::causal_conv1d_update>);
  m.impl("_causal_conv1d_bwd", mamba::conv::conv_grad_entry<mamba::conv::causal_conv1d_bwd>);
}
