// The operators of one backend key: checks -> outputs -> kernel, written once for CPU, CUDA and Meta.
#pragma once

#include <torch/library.h>

#include "checks.h"
#include "plan.h"
#include "tensors.h"

namespace mamba {

/// Backend has static functions that fill allocated outputs:
///   forward(const ScanArgs&, const ScanOutputs&), backward(const ScanGradArgs&, const GradientArray&),
///   update(const UpdateArgs&, const Tensor& out).
template <class Backend>
class Operators {
 public:
  static Tensor selective_scan(const ScanArgs& args) {
    check_scan("selective_scan", args);
    return forward(args, /*with_checkpoints=*/false).out;
  }

  static OutAndState selective_scan_with_state(const ScanArgs& args) {
    check_scan("selective_scan_with_state", args);
    const ScanOutputs outputs = forward(args, /*with_checkpoints=*/false);
    return {outputs.out, outputs.last_state};
  }

  static ForwardResult selective_scan_fwd(const ScanArgs& args) {
    check_scan("_selective_scan_fwd", args);
    const ScanOutputs outputs = forward(args, /*with_checkpoints=*/true);
    return {outputs.out, outputs.last_state, outputs.checkpoints};
  }

  static BackwardResult selective_scan_bwd(const ScanGradArgs& args) {
    check_scan_grad(args);
    const GradientArray gradients = allocate_gradients(args);
    Backend::backward(args, gradients);
    return as_tuple(gradients);
  }

  static Tensor selective_state_update(const UpdateArgs& args) {
    check_update(args);
    const Tensor out = empty_rows_like(args.x);
    Backend::update(args, out);
    return out;
  }

  static void implement(torch::Library& m) {
    m.impl("selective_scan", scan_entry<selective_scan>);
    m.impl("selective_scan_with_state", scan_entry<selective_scan_with_state>);
    m.impl("selective_state_update", update_entry<selective_state_update>);
    m.impl("_selective_scan_fwd", scan_entry<selective_scan_fwd>);
    m.impl("_selective_scan_bwd", scan_grad_entry<selective_scan_bwd>);
  }

 private:
  static ScanOutputs forward(const ScanArgs& args, bool with_checkpoints) {
    const ScanOutputs outputs = allocate_outputs(args, with_checkpoints);
    Backend::forward(args, outputs);
    return outputs;
  }
};

}  // namespace mamba
