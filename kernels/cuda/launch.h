// Launching a kernel whose only parameter is a task.
#pragma once

#include <cuda_runtime.h>

#include "mamba/kernels/config_cuda.h"
#include "mamba/kernels/scan.h"

namespace mamba::kernels::cuda {

template <class Task>
Error launch(void (*kernel)(Task), int64_t blocks, int threads, size_t shared_memory, CUstream_st* stream,
             const Task& task) {
  constexpr size_t kWithoutAsking = 48 * 1024;
  if (shared_memory > kWithoutAsking) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_memory));
    if (error != cudaSuccess) return error;
  }
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_memory, stream>>>(task);
  return cudaGetLastError();
}

/// Calls f(T()) with the activation type of a problem that is_fast().
template <class F>
Error with_activation_type(ScalarType type, F&& f) {
  switch (type) {
    case ScalarType::kFloat16:
      return f(Float16());
    case ScalarType::kBFloat16:
      return f(BFloat16());
    default:
      return f(float());
  }
}

/// Calls f(Shape()) with the shape at an index of the list.
template <class F, class First, class... Rest>
Error with_shape(ShapeList<First, Rest...>, int index, F&& f) {
  if constexpr (sizeof...(Rest) > 0) {
    if (index > 0) return with_shape(ShapeList<Rest...>(), index - 1, f);
  }
  return f(First());
}

}  // namespace mamba::kernels::cuda
