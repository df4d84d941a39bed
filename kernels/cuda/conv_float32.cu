#include "cuda/conv_backward.cuh"
#include "cuda/conv_forward.cuh"
#include "cuda/conv_update.cuh"

namespace mamba::kernels::cuda {

template Error conv_forward_with<float>(const ConvParams&, ConvAccess, CUstream_st*);
template Error conv_backward_with<float>(const ConvGradParams&, ConvAccess, float*, CUstream_st*);
template Error conv_update_with<float>(const ConvUpdateParams&, CUstream_st*);

}  // namespace mamba::kernels::cuda
