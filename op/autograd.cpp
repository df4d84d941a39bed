// Autograd: a node of our own, for torch::autograd::Function knows neither the functional transforms nor jvp.
// Always redispatches; never calls a backend's function.
#include <torch/library.h>

#include "checks.h"
#include "double_backward.h"
#include "node.h"
#include "scan_math.h"

namespace mamba {

namespace {

/// What the node holds: the nine differentiable inputs, then these; and its flags.
enum Saved : size_t { kCuSeqlens = kGradients, kCheckpoints };
enum Flag : size_t { kDeltaSoftplus, kReverse };

class SelectiveScanBackward : public OperatorNode<SelectiveScanBackward> {
 public:
  std::string name() const override { return "SelectiveScanBackward"; }

  static variable_list backward(const variable_list& gradients, const NodeContext& context) {
    if (!gradients[0].defined() && !gradients[1].defined()) return variable_list(kGradients);
    ScanGradArgs args;
    args.dout = gradients[0];
    args.dlast_state = gradients[1];
    GradientArray inputs;
    for (const size_t i : c10::irange(kGradients)) {
      inputs[i] = context.saved[i];
      args.mask[i] = context.wanted[i] && inputs[i].defined();
    }
    args.scan.delta_softplus = context.flags[kDeltaSoftplus];
    args.scan.reverse = context.flags[kReverse];
    args.scan.cu_seqlens = context.saved[kCuSeqlens];
    args.scan = with_differentiable(args.scan, inputs);
    args.checkpoints = context.saved[kCheckpoints];
    const GradientArray result = as_array(call_selective_scan_bwd(args));
    variable_list wanted_only(kGradients);
    for (const size_t i : c10::irange(kGradients)) {
      if (args.mask[i]) wanted_only[i] = result[i];
    }
    return wanted_only;
  }
};

ForwardResult selective_scan_fwd(const ScanArgs& args) {
  const GradientArray inputs = differentiable(args);
  std::shared_ptr<SelectiveScanBackward> node;
  if (any_requires_grad(inputs)) {
    node = SelectiveScanBackward::make(inputs, {args.delta_softplus, args.reverse});
    node->save(args.cu_seqlens);
  }
  auto [out, last_state, checkpoints] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_selective_scan_fwd(args);
  }();
  if (node) {
    node->save(checkpoints);
    torch::autograd::set_history(out, node);
    torch::autograd::set_history(last_state, node);
  }
  return {out, last_state, checkpoints};
}

/// Where derivatives are asked for, through the forward that saves checkpoints; with tangents, through the
/// differentiable formula; else straight below.
Tensor selective_scan(const ScanArgs& args) {
  const GradientArray inputs = differentiable(args);
  const bool has_tangent = any_has_tangent(inputs);
  if (has_tangent || any_requires_grad(inputs)) {
    check_scan("selective_scan", args);
    return has_tangent ? std::get<0>(scan_math(args)) : std::get<0>(call_selective_scan_fwd(args));
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_selective_scan(args);
}

OutAndState selective_scan_with_state(const ScanArgs& args) {
  const GradientArray inputs = differentiable(args);
  const bool has_tangent = any_has_tangent(inputs);
  if (has_tangent || any_requires_grad(inputs)) {
    check_scan("selective_scan_with_state", args);
    if (has_tangent) return scan_math(args);
    const ForwardResult result = call_selective_scan_fwd(args);
    return {std::get<0>(result), std::get<1>(result)};
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_selective_scan_with_state(args);
}

/// Tangents go through the differentiable formula; a gradient that may be differentiated again gets a node behind it.
BackwardResult selective_scan_bwd(const ScanGradArgs& args) {
  const GradientArray inputs = differentiable(args.scan);
  const std::array<Tensor, 2> gradients = {args.dout, args.dlast_state};
  if (any_has_tangent(inputs) || any_has_tangent(gradients)) {
    check_scan_grad(args);
    return as_tuple(scan_grad_math(args));
  }
  if (any_requires_grad(inputs) || any_requires_grad(gradients)) return differentiable_backward(args);
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_selective_scan_bwd(args);
}

Tensor selective_state_update(const UpdateArgs& args) {
  const std::array<std::reference_wrapper<const Tensor>, 9> inputs = {
      args.state, args.x, args.dt, args.A, args.B, args.C, value(args.D), value(args.z), value(args.dt_bias)};
  TORCH_CHECK_NOT_IMPLEMENTED(
      !any_requires_grad(inputs) && !any_has_tangent(inputs),
      "selective_state_update: expected inputs that need no derivatives, for the state changes in place, but got one "
      "that requires grad or carries a tangent; use selective_scan_with_state with L = 1, or torch.no_grad()");
  const Tensor out = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_selective_state_update(args);
  }();
  torch::autograd::impl::bump_version(args.state);
  return out;
}

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, Autograd, m) {
  m.impl("selective_scan", mamba::scan_entry<mamba::selective_scan>);
  m.impl("selective_scan_with_state", mamba::scan_entry<mamba::selective_scan_with_state>);
  m.impl("selective_state_update", mamba::update_entry<mamba::selective_state_update>);
  m.impl("_selective_scan_fwd", mamba::scan_entry<mamba::selective_scan_fwd>);
  m.impl("_selective_scan_bwd", mamba::scan_grad_entry<mamba::selective_scan_bwd>);
}
