#include "cuda/backward.cuh"

namespace mamba::kernels::cuda {

template Error backward_lanes<Float16>(const BackwardTask&, int, CUstream_st*);

}  // namespace mamba::kernels::cuda
