// The convolution and its adjoint in differentiable tensor operators, for tangents and derivatives of gradients.
#pragma once

#include "conv/conv_arguments.h"

namespace mamba::conv {

/// What causal_conv1d computes. Expects checked arguments.
OutAndState conv_math(const ConvArgs& args);

/// What _causal_conv1d_bwd computes; empty tensors where the mask is off. Expects checked arguments.
GradientArray conv_grad_math(const ConvGradArgs& args);

}  // namespace mamba::conv
