// Picks the kernel of a decoding step.
#include "cuda/update.h"

#include "cuda/launch.h"
#include "generic/cuda.h"

namespace mamba::kernels::cuda {

Error update_by_task(const UpdateParams& params, const UpdateTask& task, CUstream_st* stream) {
  return with_activation_type(params.activation_type, [&](auto activation) {
    return with_activation_type(params.state_type, [&](auto state) {
      return update_with<decltype(activation), decltype(state)>(task, stream);
    });
  });
}

Error update(const UpdateParams& params, CUstream_st* stream) {
  if (params.rows == 0) return cudaSuccess;
  const UpdateTask task = update_task(params);
  return task.is_taken ? update_by_task(params, task, stream) : generic::cuda::update(params, stream);
}

}  // namespace mamba::kernels::cuda
