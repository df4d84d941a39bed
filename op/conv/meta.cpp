// Shapes of the convolution without values.
#include "conv/backend.h"

namespace mamba::conv {

namespace {

struct Meta {
  static void forward(const ConvArgs&, const OutAndState&) {}
  static void backward(const ConvGradArgs&, const GradientArray&) {}
  static void update(const ConvUpdateArgs&, const Tensor&) {}
};

}  // namespace

}  // namespace mamba::conv

TORCH_LIBRARY_IMPL(mamba, Meta, m) {
  mamba::conv::Operators<mamba::conv::Meta>::implement(m);
}
