#include "cuda/forward_registers.cuh"

namespace mamba::kernels::cuda {

template Error forward_registers<BFloat16>(const ForwardTask&, int, CUstream_st*);

}  // namespace mamba::kernels::cuda
