#include "cuda/forward_registers.cuh"

namespace mamba::kernels::cuda {

template Error forward_registers<float>(const ForwardTask&, int, CUstream_st*);

}  // namespace mamba::kernels::cuda
