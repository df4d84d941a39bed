// Autograd: a node of our own, for torch::autograd::Function knows neither the functional transforms nor jvp.
// Always redispatches; never calls a backend's function.
#include <ATen/core/grad_mode.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>

#include "checks.h"
#include "double_backward.h"
#include "scan_math.h"

namespace mamba {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
namespace compiled = torch::dynamo::autograd;

/// What the backward needs besides the gradients of the outputs: the nine differentiable inputs, then these two.
enum Saved : size_t { kCuSeqlens = kGradients, kCheckpoints, kSaved };

class SelectiveScanBackward : public torch::autograd::Node {
 public:
  SelectiveScanBackward(const ScanArgs& args, const GradientArray& inputs)
      : delta_softplus_(args.delta_softplus), reverse_(args.reverse) {
    for (const size_t i : c10::irange(kGradients)) saved_[i] = SavedVariable(inputs[i], /*is_output=*/false);
    saved_[kCuSeqlens] = SavedVariable(args.cu_seqlens, /*is_output=*/false);
  }

  void save_checkpoints(const Tensor& checkpoints) {
    saved_[kCheckpoints] = SavedVariable(checkpoints, /*is_output=*/false);
  }

  std::string name() const override { return "SelectiveScanBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return backward(gradients, unpack(), wanted(), delta_softplus_, reverse_);
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& x : saved_) x.reset_data();
  }

  // Compiled autograd traces the backward as a function of the saved variables.
  void compiled_args(compiled::CompiledNodeArgs& args) const override {
    for (const SavedVariable& x : saved_) args.collect(x, /*is_output=*/false);
    args.collect(delta_softplus_);
    args.collect(reverse_);
  }

  variable_list apply_with_saved(const variable_list& gradients, compiled::SwapSavedVariables& swap) override {
    for (SavedVariable& x : saved_) swap.before(x);
    compiled::PackedArgs packed;
    packed.pack(unpack());
    packed.pack(wanted());
    packed.pack(delta_softplus_);
    packed.pack(reverse_);
    const std::vector<at::IValue> values = std::move(packed).vec();
    std::vector<at::TypePtr> schema;
    for (const at::IValue& value : values) {
      schema.push_back(value.isTensor() ? at::TypePtr(at::TensorType::get()) : value.type());
    }
    const auto& compiler = compiled::getPyCompilerInterface();
    const std::string function = compiler->bind_function(swap.get_py_compiler(), name(), &backward_of_packed, schema,
                                                         /*is_custom_function=*/true, /*is_traceable=*/true);
    const at::IValue metadata =
        compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            compiled::get_input_metadata(next_edges()));
    variable_list result =
        compiler->call_function(swap.get_py_compiler(), "apply_functional", function, gradients, values, metadata);
    for (SavedVariable& x : saved_) swap.after(x);
    return result;
  }

 private:
  variable_list unpack() {
    variable_list saved;
    for (SavedVariable& x : saved_) saved.push_back(x.unpack());
    return saved;
  }

  std::vector<bool> wanted() {
    std::vector<bool> wanted;
    for (const size_t i : c10::irange(next_edges().size())) wanted.push_back(task_should_compute_output(i));
    return wanted;
  }

  static variable_list backward(const variable_list& gradients, const variable_list& saved,
                                const std::vector<bool>& wanted, bool delta_softplus, bool reverse) {
    if (!gradients[0].defined() && !gradients[1].defined()) return variable_list(kGradients);
    ScanGradArgs args;
    args.dout = gradients[0];
    args.dlast_state = gradients[1];
    GradientArray inputs;
    for (const size_t i : c10::irange(kGradients)) {
      inputs[i] = saved[i];
      args.mask[i] = wanted[i] && saved[i].defined();
    }
    args.scan.delta_softplus = delta_softplus;
    args.scan.reverse = reverse;
    args.scan.cu_seqlens = saved[kCuSeqlens];
    args.scan = with_differentiable(args.scan, inputs);
    args.checkpoints = saved[kCheckpoints];
    const GradientArray result = as_array(call_selective_scan_bwd(args));
    variable_list wanted_only(kGradients);
    for (const size_t i : c10::irange(kGradients)) {
      if (args.mask[i]) wanted_only[i] = result[i];
    }
    return wanted_only;
  }

  static variable_list backward_of_packed(const variable_list& gradients, const std::vector<at::IValue>& values) {
    compiled::PackedArgs packed(values);
    const auto saved = packed.unpack<variable_list>();
    const auto wanted = packed.unpack<std::vector<bool>>();
    const auto delta_softplus = packed.unpack<bool>();
    const auto reverse = packed.unpack<bool>();
    return backward(gradients, saved, wanted, delta_softplus, reverse);
  }

  std::array<SavedVariable, kSaved> saved_;
  bool delta_softplus_, reverse_;
};

template <class Tensors>
bool any_requires_grad(const Tensors& tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const Tensor& x : tensors) {
    if (x.defined() && x.requires_grad()) return true;
  }
  return false;
}

template <class Tensors>
bool any_has_tangent(const Tensors& tensors) {
  for (const Tensor& x : tensors) {
    if (torch::autograd::isFwGradDefined(x)) return true;
  }
  return false;
}

ForwardResult selective_scan_fwd(const ScanArgs& args) {
  const GradientArray inputs = differentiable(args);
  std::shared_ptr<SelectiveScanBackward> node;
  if (any_requires_grad(inputs)) {
    node = std::shared_ptr<SelectiveScanBackward>(new SelectiveScanBackward(args, inputs), torch::autograd::deleteNode);
    for (const Tensor& x : inputs)
      node->add_next_edge(x.defined() ? torch::autograd::impl::gradient_edge(x) : torch::autograd::Edge());
  }
  auto [out, last_state, checkpoints] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_selective_scan_fwd(args);
  }();
  if (node) {
    node->save_checkpoints(checkpoints);
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
  const std::array<Tensor, 9> inputs = {args.state, args.x, args.dt, args.A,      args.B,
                                        args.C,     args.D, args.z,  args.dt_bias};
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
