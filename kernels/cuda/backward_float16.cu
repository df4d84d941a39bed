#include "cuda/adjoint_carry.cuh"
#include "cuda/backward.cuh"

namespace mamba::kernels::cuda {

template Error backward_lanes<Float16>(const BackwardTask&, int, CUstream_st*);
template Error adjoint_carries<Float16>(const CarryTask&, CUstream_st*);

}  // namespace mamba::kernels::cuda
