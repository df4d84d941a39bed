// An autograd node for one of our operators: what SavedVariables and compiled autograd need, written once.
#pragma once

#include <c10/util/irange.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"

namespace mamba {

using torch::autograd::variable_list;

/// What a node's backward is given: the saved tensors, which derivatives are wanted, and the operator's flags.
struct NodeContext {
  variable_list saved;
  std::vector<bool> wanted, flags;
};

/// Derived has a name() and  static variable_list backward(const variable_list& gradients, const NodeContext&).
template <class Derived>
class OperatorNode : public torch::autograd::Node {
 public:
  /// A node whose first saved tensors are the differentiable inputs.
  template <class Tensors>
  static std::shared_ptr<Derived> make(const Tensors& inputs, std::vector<bool> flags) {
    std::shared_ptr<Derived> node(new Derived(), torch::autograd::deleteNode);
    node->flags_ = std::move(flags);
    for (const Tensor& x : inputs) {
      node->save(x);
      node->add_next_edge(x.defined() ? torch::autograd::impl::gradient_edge(x) : torch::autograd::Edge());
    }
    return node;
  }

  void save(const Tensor& x) { saved_.emplace_back(x, /*is_output=*/false); }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return Derived::backward(gradients, {unpack(), wanted(), flags_});
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& x : saved_) x.reset_data();
  }

  // Compiled autograd traces the backward as a function of the saved variables.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    for (const auto& x : saved_) args.collect(x, /*is_output=*/false);
    for (const bool flag : flags_) args.collect(flag);
  }

  variable_list apply_with_saved(const variable_list& gradients,
                                 torch::dynamo::autograd::SwapSavedVariables& swap) override {
    namespace compiled = torch::dynamo::autograd;
    for (auto& x : saved_) swap.before(x);
    compiled::PackedArgs packed;
    packed.pack(unpack());
    packed.pack(wanted());
    packed.pack(flags_);
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
    for (auto& x : saved_) swap.after(x);
    return result;
  }

 private:
  static variable_list backward_of_packed(const variable_list& gradients, const std::vector<at::IValue>& values) {
    torch::dynamo::autograd::PackedArgs packed(values);
    NodeContext context;
    context.saved = packed.unpack<variable_list>();
    context.wanted = packed.unpack<std::vector<bool>>();
    context.flags = packed.unpack<std::vector<bool>>();
    return Derived::backward(gradients, context);
  }

  variable_list unpack() {
    variable_list saved;
    for (auto& x : saved_) saved.push_back(x.unpack());
    return saved;
  }

  std::vector<bool> wanted() {
    std::vector<bool> wanted;
    for (const size_t i : c10::irange(next_edges().size())) wanted.push_back(task_should_compute_output(i));
    return wanted;
  }

  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<bool> flags_;
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
    if (x.defined() && x._fw_grad(/*level=*/0).defined()) return true;
  }
  return false;
}

}  // namespace mamba
