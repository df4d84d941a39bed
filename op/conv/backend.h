// The convolution's operators of one backend key: checks -> outputs -> kernel.
#pragma once

#include <torch/library.h>

#include "conv/checks.h"
#include "conv/plan.h"
#include "tensors.h"

namespace mamba::conv {

/// Backend has static functions that fill allocated outputs, as in ../backend.h.
template <class Backend>
class Operators {
 public:
  static OutAndState causal_conv1d(const ConvArgs& args) {
    check_conv("causal_conv1d", args);
    const OutAndState outputs = allocate_outputs(args);
    Backend::forward(args, outputs);
    return outputs;
  }

  static BackwardResult causal_conv1d_bwd(const ConvGradArgs& args) {
    check_conv_grad(args);
    const GradientArray gradients = allocate_gradients(args);
    Backend::backward(args, gradients);
    return as_tuple(gradients);
  }

  static Tensor causal_conv1d_update(const ConvUpdateArgs& args) {
    check_conv_update(args);
    const Tensor out = empty_rows_like(args.x);
    Backend::update(args, out);
    return out;
  }

  static void implement(torch::Library& m) {
    m.impl("causal_conv1d", conv_entry<causal_conv1d>);
    m.impl("causal_conv1d_update", conv_update_entry<causal_conv1d_update>);
    m.impl("_causal_conv1d_bwd", conv_grad_entry<causal_conv1d_bwd>);
  }
};

}  // namespace mamba::conv
