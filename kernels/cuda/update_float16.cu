#include "cuda/update.cuh"

namespace mamba::kernels::cuda {

template Error update_with<Float16, float>(const UpdateTask&, CUstream_st*);
template Error update_with<Float16, Float16>(const UpdateTask&, CUstream_st*);
template Error update_with<Float16, BFloat16>(const UpdateTask&, CUstream_st*);

}  // namespace mamba::kernels::cuda
