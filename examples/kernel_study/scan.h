// The three kernels, without torch: they launch on `stream` and return what cudaGetLastError() says.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "problem.h"

namespace mamba_study {

cudaError_t scan_naive(const Problem& problem, cudaStream_t stream);

/// lane_steps: consecutive steps that a lane takes by itself, 1, 4 or 8.
cudaError_t scan_warp(const Problem& problem, int lane_steps, cudaStream_t stream);

cudaError_t scan_shared(const Problem& problem, cudaStream_t stream);

/// Calls `launch` with the smallest of 1, 4, 16, 32 that holds dstate, as a compile-time constant: states in registers
/// and lanes by state need one.
template <class Launch>
void with_states(int dstate, Launch&& launch) {
  if (dstate == 1) {
    launch(std::integral_constant<int, 1>());
  } else if (dstate <= 4) {
    launch(std::integral_constant<int, 4>());
  } else if (dstate <= 16) {
    launch(std::integral_constant<int, 16>());
  } else {
    launch(std::integral_constant<int, kMostStates>());
  }
}

}  // namespace mamba_study
