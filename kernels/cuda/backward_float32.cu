#include "cuda/adjoint_carry.cuh"
#include "cuda/backward.cuh"

namespace mamba::kernels::cuda {

template Error backward_lanes<float>(const BackwardTask&, int, CUstream_st*);
template Error adjoint_carries<float>(const CarryTask&, CUstream_st*);

}  // namespace mamba::kernels::cuda
