#include "cuda/chunk_carry.cuh"

namespace mamba::kernels::cuda {

template Error chunk_carries<Float16, false>(const CarryTask&, CUstream_st*);
template Error chunk_carries<Float16, true>(const CarryTask&, CUstream_st*);

}  // namespace mamba::kernels::cuda
