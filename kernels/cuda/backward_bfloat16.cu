#include "cuda/backward.cuh"

namespace mamba::kernels::cuda {

template Error backward_lanes<BFloat16>(const BackwardTask&, int, CUstream_st*);

}  // namespace mamba::kernels::cuda
