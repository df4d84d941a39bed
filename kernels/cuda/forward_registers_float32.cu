#include "cuda/forward_registers.cuh"

namespace mamba::kernels::cuda {

template Error forward_registers<float>(const ScanParams&, int, CUstream_st*);

}  // namespace mamba::kernels::cuda
