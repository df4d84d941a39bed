#include "cuda/forward_registers.cuh"

namespace mamba::kernels::cuda {

template Error forward_registers<Float16>(const ForwardTask&, int, CUstream_st*);

}  // namespace mamba::kernels::cuda
