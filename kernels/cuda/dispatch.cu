// Picks the kernels for a problem: a fast one where there is one, else the generic one.
#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "cuda/task.h"
#include "generic/cuda.h"

namespace mamba::kernels::cuda {

namespace {

Error this_machine(Machine& machine) {
  int device = 0, processors = 0, shared_memory = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  machine = {processors, shared_memory};
  return error;
}

}  // namespace

Error forward(const ScanParams& params, CUstream_st* stream) {
  if (!is_fast(params)) return generic::cuda::forward(params, stream);
  Machine machine;
  if (const Error error = this_machine(machine); error != cudaSuccess) return error;
  if (!has_forward(params, machine)) return generic::cuda::forward(params, stream);
  return with_activation_type(params.activation_type, [&](auto activation) {
    using T = decltype(activation);
    return few_channels(params, machine) ? forward_lanes<T>(params, lane_choice(params, machine), stream)
                                         : forward_registers<T>(params, register_shape(params, machine), stream);
  });
}

int64_t backward_workspace(const ScanGradParams& params) {
  Machine machine;
  if (!is_fast(params.scan) || this_machine(machine) != cudaSuccess || !has_backward(params.scan, machine)) {
    return generic::cuda::backward_workspace(params);
  }
  return backward_plan(params, machine).floats * static_cast<int64_t>(sizeof(float));
}

Error backward(const ScanGradParams& params, void* workspace, CUstream_st* stream) {
  if (!is_fast(params.scan)) return generic::cuda::backward(params, workspace, stream);
  Machine machine;
  if (const Error error = this_machine(machine); error != cudaSuccess) return error;
  if (!has_backward(params.scan, machine)) return generic::cuda::backward(params, workspace, stream);
  return backward_by_plan(params, backward_plan(params, machine), static_cast<float*>(workspace), stream);
}

}  // namespace mamba::kernels::cuda
