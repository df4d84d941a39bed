// CUDA tensors in a library built without CUDA: the checks as usual, then the remedy.
#include "backend.h"

namespace mamba {

namespace {

struct NoCuda {
  static void refuse(const char* op, const char* argument) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, op, ": expected ", argument,
        " to be a CPU tensor in a library built without CUDA, but got a CUDA tensor; build "
        "mamba_ops with nvcc on the PATH, or with -DMAMBA_OPS_CUDA=ON to be told what is missing");
  }
  static void forward(const ScanArgs&, const ScanOutputs&) { refuse("selective_scan", "u"); }
  static void backward(const ScanGradArgs&, const GradientArray&) { refuse("_selective_scan_bwd", "u"); }
  static void update(const UpdateArgs&, const Tensor&) { refuse("selective_state_update", "x"); }
};

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, CUDA, m) {
  mamba::Operators<mamba::NoCuda>::implement(m);
}
