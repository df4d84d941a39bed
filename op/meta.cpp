// Shapes without values: the checks and the outputs of the other backends, and no kernel. SymInt-safe.
#include "backend.h"

namespace mamba {

namespace {

struct Meta {
  static void forward(const ScanArgs&, const ScanOutputs&) {}
  static void backward(const ScanGradArgs&, const GradientArray&) {}
  static void update(const UpdateArgs&, const Tensor&) {}
};

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, Meta, m) {
  mamba::Operators<mamba::Meta>::implement(m);
}
