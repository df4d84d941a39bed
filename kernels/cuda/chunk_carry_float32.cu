#include "cuda/chunk_carry.cuh"

namespace mamba::kernels::cuda {

template Error chunk_carries<float, false>(const CarryTask&, CUstream_st*);
template Error chunk_carries<float, true>(const CarryTask&, CUstream_st*);

}  // namespace mamba::kernels::cuda
