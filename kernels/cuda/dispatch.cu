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

int64_t carries_size(const ScanParams& params) {
  Machine machine;
  if (!is_fast(params) || this_machine(machine) != cudaSuccess) return 0;
  const ForwardPlan plan = forward_plan(params, machine);
  return fits(params, machine, plan) ? plan.floats * static_cast<int64_t>(sizeof(float)) : 0;
}

Error forward(const ScanParams& params, CUstream_st* stream) {
  if (!is_fast(params)) return generic::cuda::forward(params, stream);
  Machine machine;
  if (const Error error = this_machine(machine); error != cudaSuccess) return error;
  const ForwardPlan plan = forward_plan(params, machine);
  if (!fits(params, machine, plan)) return generic::cuda::forward(params, stream);
  return forward_by_plan(params, plan, stream);
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
