// The forward as its plan says: the carries of chunks, if there are any, then the kernel.
#include "cuda/launch.h"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

Error forward_by_plan(const ScanParams& params, const ForwardPlan& plan, CUstream_st* stream) {
  return with_activation_type(params.activation_type, [&](auto activation) -> Error {
    using T = decltype(activation);
    if (plan.over_lanes) return forward_lanes<T>(params, plan.shape, plan.groups, stream);
    ForwardTask task;
    task.scan = params;
    if (plan.chunks > 1) {
      float* workspace = static_cast<float*>(params.carries);
      CarryTask carries;
      carries.scan = params;
      task.chunks = carries.chunks = static_cast<int>(plan.chunks);
      task.chunk_steps = carries.chunk_steps = static_cast<int>(plan.chunk_steps);
      task.chunk_states = carries.states = workspace;
      task.chunk_exponents = carries.exponents = workspace + plan.chunk_exponents;
      if (const Error error = chunk_carries<T, false>(carries, stream); error != cudaSuccess) return error;
    }
    return forward_registers<T>(task, plan.shape, stream);
  });
}

}  // namespace mamba::kernels::cuda
