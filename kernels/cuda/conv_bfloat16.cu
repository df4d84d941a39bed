#include "cuda/conv_backward.cuh"
#include "cuda/conv_forward.cuh"
#include "cuda/conv_update.cuh"

namespace mamba::kernels::cuda {

template Error conv_forward_with<BFloat16>(const ConvParams&, ConvAccess, CUstream_st*);
template Error conv_backward_with<BFloat16>(const ConvGradParams&, ConvAccess, float*, CUstream_st*);
template Error conv_update_with<BFloat16>(const ConvUpdateParams&, CUstream_st*);

}  // namespace mamba::kernels::cuda
