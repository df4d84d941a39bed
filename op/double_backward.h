// The backward as a differentiable operation itself: for create_graph=True and the functional transforms.
#pragma once

#include "arguments.h"

namespace mamba {

/// What _selective_scan_bwd computes, by the kernel, with a node behind the results that differentiates the formula of
/// scan_math.h when second derivatives are really asked for.
BackwardResult differentiable_backward(const ScanGradArgs& args);

}  // namespace mamba
