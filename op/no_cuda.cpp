// CUDA tensors in a library built without CUDA: the checks as usual, then the remedy.
#include "no_cuda.h"

#include "backend.h"

namespace mamba {

namespace {

struct NoCuda {
  static void forward(const ScanArgs&, const ScanOutputs&) { refuse_cuda("selective_scan", "u"); }
  static void backward(const ScanGradArgs&, const GradientArray&) { refuse_cuda("_selective_scan_bwd", "u"); }
  static void update(const UpdateArgs&, const Tensor&) { refuse_cuda("selective_state_update", "x"); }
};

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, CUDA, m) {
  mamba::Operators<mamba::NoCuda>::implement(m);
}
