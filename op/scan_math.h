// The scan and its adjoint in differentiable tensor operators: any order of derivatives, forward or reverse mode, at
// the price of (batch, dim, dstate, length) intermediates. Plain training never comes here.
#pragma once

#include "arguments.h"

namespace mamba {

/// What selective_scan_with_state computes. Expects checked arguments.
OutAndState scan_math(const ScanArgs& args);

/// What _selective_scan_bwd computes; empty tensors where the mask is off. Expects checked arguments.
GradientArray scan_grad_math(const ScanGradArgs& args);

}  // namespace mamba
