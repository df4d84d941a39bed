#include "cuda/forward_lanes.cuh"

namespace mamba::kernels::cuda {

template Error forward_lanes<float>(const ScanParams&, int, int, CUstream_st*);

}  // namespace mamba::kernels::cuda
