// The CUDA kernels, on the current stream.
#include <ATen/ops/empty.h>

#include "backend.h"
#include "launch.h"

namespace mamba {

namespace {

namespace cuda = kernels::cuda;

struct Cuda {
  static void forward(const ScanArgs& args, const ScanOutputs& outputs) {
    const c10::OptionalDeviceGuard guard(args.u.device());
    const ScanPlan plan(args, outputs);
    kernels::ScanParams p = plan.params();
    Tensor carries;
    if (const int64_t size = cuda::carries_size(p)) {
      carries = at::empty({size}, args.u.options().dtype(at::kByte));
      p.carries = carries.mutable_data_ptr();
    }
    check_launch(cuda::forward(p, current_stream(args.u)));
  }

  static void backward(const ScanGradArgs& args, const GradientArray& gradients) {
    const c10::OptionalDeviceGuard guard(args.scan.u.device());
    CUstream_st* stream = current_stream(args.scan.u);
    ScanGradPlan plan(args, gradients, Sums::kWhole);
    const Tensor workspace =
        at::empty({cuda::backward_workspace(plan.params())}, args.scan.u.options().dtype(at::kByte));
    check_launch(cuda::backward(plan.params(), workspace.mutable_data_ptr(), stream));
    plan.finish();
  }

  static void update(const UpdateArgs& args, const Tensor& out) {
    const c10::OptionalDeviceGuard guard(args.x.device());
    const UpdatePlan plan(args, out);
    check_launch(cuda::update(plan.params(), current_stream(args.x)));
  }
};

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, CUDA, m) {
  mamba::Operators<mamba::Cuda>::implement(m);
}
