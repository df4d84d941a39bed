#include "cuda/adjoint_carry.cuh"
#include "cuda/backward.cuh"

namespace mamba::kernels::cuda {

template Error backward_lanes<BFloat16>(const BackwardTask&, int, CUstream_st*);
template Error adjoint_carries<BFloat16>(const CarryTask&, CUstream_st*);

}  // namespace mamba::kernels::cuda
