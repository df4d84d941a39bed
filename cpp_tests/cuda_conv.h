// Runs a convolution on the device, by the kernels that are chosen or by the generic ones.
#pragma once

#include "conv_problem.h"
#include "generic/conv_cuda.h"
#include "kernels/device.h"
#include "kernels/scan_problem.h"

namespace mamba::tests {

inline constexpr ScalarType kFastTypes[] = {ScalarType::kFloat32, ScalarType::kFloat16, ScalarType::kBFloat16};
inline constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kChannelLast, Layout::kPadded};

enum class Kernel { kChosen, kGeneric };

inline void run(ConvProblem& problem, Kernel kernel) {
  namespace fast = kernels::cuda;
  namespace generic = kernels::generic::cuda;
  const bool is_generic = kernel == Kernel::kGeneric;
  for (View* view : {&problem.out, &problem.dx}) view->fill(77);  // the kernels write all of it, also between sequences
  const DeviceCopy device(problem.arrays());
  const kernels::ConvGradParams g = problem.grad_params(device.place());
  ASSERT_EQ(is_generic ? generic::conv_forward(g.conv, nullptr) : fast::conv_forward(g.conv, nullptr), cudaSuccess);
  const DeviceMemory workspace(is_generic ? generic::conv_backward_workspace(g) : fast::conv_backward_workspace(g));
  ASSERT_EQ(is_generic ? generic::conv_backward(g, workspace.data(), nullptr)
                       : fast::conv_backward(g, workspace.data(), nullptr),
            cudaSuccess);
  device.read_back();
}

}  // namespace mamba::tests
