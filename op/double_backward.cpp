#include "double_backward.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "scan_math.h"

namespace mamba {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// The differentiable inputs of the backward: the gradients of the two outputs, then the inputs of the scan.
constexpr size_t kDout = 0, kDlastState = 1, kInputs = 2, kDifferentiable = kInputs + kGradients;
using InputArray = std::array<Tensor, kDifferentiable>;

InputArray inputs_of(const ScanGradArgs& args) {
  InputArray inputs = {args.dout, args.dlast_state};
  const GradientArray of_the_scan = differentiable(args.scan);
  std::copy(of_the_scan.begin(), of_the_scan.end(), inputs.begin() + kInputs);
  return inputs;
}

ScanGradArgs with_inputs(const ScanGradArgs& args, const InputArray& inputs) {
  ScanGradArgs result = args;
  result.dout = inputs[kDout];
  result.dlast_state = inputs[kDlastState];
  GradientArray of_the_scan;
  std::copy(inputs.begin() + kInputs, inputs.end(), of_the_scan.begin());
  result.scan = with_differentiable(args.scan, of_the_scan);
  return result;
}

class SelectiveScanBackwardBackward : public torch::autograd::Node {
 public:
  SelectiveScanBackwardBackward(const ScanGradArgs& args, const InputArray& inputs)
      : cu_seqlens_(args.scan.cu_seqlens, /*is_output=*/false), mask_(args.mask) {
    args_.scan.delta_softplus = args.scan.delta_softplus;
    args_.scan.reverse = args.scan.reverse;
    for (const size_t i : c10::irange(kDifferentiable)) {
      saved_[i] = SavedVariable(inputs[i], /*is_output=*/false);
      add_next_edge(inputs[i].defined() ? torch::autograd::impl::gradient_edge(inputs[i]) : torch::autograd::Edge());
    }
  }

  std::string name() const override { return "SelectiveScanBackwardBackward"; }

  /// Reverse mode through the formula of the backward, evaluated here for the first time.
  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool create_graph = at::GradMode::is_enabled();
    const at::AutoGradMode with_graph(true);
    InputArray inputs;
    variable_list wanted;
    for (const size_t i : c10::irange(kDifferentiable)) {
      inputs[i] = saved_[i].unpack();
      if (!task_should_compute_output(i) || !inputs[i].defined()) continue;
      inputs[i] = inputs[i].view_as(inputs[i]);  // a variable of this graph, behind it the caller's for higher orders
      wanted.push_back(inputs[i]);
    }
    ScanGradArgs args = args_;
    args.scan.cu_seqlens = cu_seqlens_.unpack();
    for (const size_t i : c10::irange(kGradients)) args.mask[i] = mask_[i] && gradients[i].defined();
    const GradientArray formula = scan_grad_math(with_inputs(args, inputs));

    variable_list results, weights;
    for (const size_t i : c10::irange(kGradients)) {
      if (!args.mask[i] || !formula[i].requires_grad()) continue;
      results.push_back(formula[i]);
      weights.push_back(gradients[i]);
    }
    variable_list derivatives(kDifferentiable);
    if (results.empty() || wanted.empty()) return derivatives;
    const variable_list found = torch::autograd::grad(results, wanted, weights, /*retain_graph=*/create_graph,
                                                      create_graph, /*allow_unused=*/true);
    size_t next = 0;
    for (const size_t i : c10::irange(kDifferentiable)) {
      if (task_should_compute_output(i) && inputs[i].defined()) derivatives[i] = found[next++];
    }
    return derivatives;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& x : saved_) x.reset_data();
    cu_seqlens_.reset_data();
  }

 private:
  std::array<SavedVariable, kDifferentiable> saved_;
  SavedVariable cu_seqlens_;
  ScanGradArgs args_;  // its flags alone
  GradientMask mask_;
};

}  // namespace

BackwardResult differentiable_backward(const ScanGradArgs& args) {
  const InputArray inputs = inputs_of(args);
  const std::shared_ptr<SelectiveScanBackwardBackward> node(new SelectiveScanBackwardBackward(args, inputs),
                                                            torch::autograd::deleteNode);
  GradientArray results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return as_array(call_selective_scan_bwd(args));
  }();
  const GradientArray of_the_scan = differentiable(args.scan);
  for (const size_t i : c10::irange(kGradients)) {
    if (args.mask[i] && of_the_scan[i].defined()) {
      torch::autograd::set_history(results[i], node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  return as_tuple(results);
}

}  // namespace mamba
