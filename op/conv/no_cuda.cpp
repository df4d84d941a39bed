// CUDA tensors in a library built without CUDA.
#include "no_cuda.h"
#include "conv/backend.h"

namespace mamba::conv {

namespace {

struct NoCuda {
  static void forward(const ConvArgs&, const OutAndState&) { refuse_cuda("causal_conv1d", "x"); }
  static void backward(const ConvGradArgs&, const GradientArray&) { refuse_cuda("_causal_conv1d_bwd", "x"); }
  static void update(const ConvUpdateArgs&, const Tensor&) { refuse_cuda("causal_conv1d_update", "x"); }
};

}  // namespace

}  // namespace mamba::conv

TORCH_LIBRARY_IMPL(mamba, CUDA, m) {
  mamba::conv::Operators<mamba::conv::NoCuda>::implement(m);
}
