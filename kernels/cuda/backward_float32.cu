#include "cuda/backward.cuh"

namespace mamba::kernels::cuda {

template Error backward_lanes<float>(const BackwardTask&, int, CUstream_st*);

}  // namespace mamba::kernels::cuda
