#include "cuda/update.cuh"

namespace mamba::kernels::cuda {

template Error update_with<float, float>(const UpdateTask&, CUstream_st*);
template Error update_with<float, Float16>(const UpdateTask&, CUstream_st*);
template Error update_with<float, BFloat16>(const UpdateTask&, CUstream_st*);

}  // namespace mamba::kernels::cuda
