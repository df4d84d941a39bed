#include "cuda/forward_registers.cuh"

namespace mamba::kernels::cuda {

template Error forward_registers<Float16>(const ScanParams&, int, CUstream_st*);

}  // namespace mamba::kernels::cuda
