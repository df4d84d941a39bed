// The convolution on CUDA, on the current stream.
#include <ATen/ops/empty.h>

#include "conv/backend.h"
#include "launch.h"

namespace mamba::conv {

namespace {

namespace cuda = kernels::cuda;

struct Cuda {
  static void forward(const ConvArgs& args, const OutAndState& outputs) {
    const c10::OptionalDeviceGuard guard(args.x.device());
    const ConvPlan plan(args, outputs);
    check_launch(cuda::conv_forward(plan.params(), current_stream(args.x)));
  }

  static void backward(const ConvGradArgs& args, const GradientArray& gradients) {
    const c10::OptionalDeviceGuard guard(args.conv.x.device());
    CUstream_st* stream = current_stream(args.conv.x);
    const ConvGradPlan plan(args, gradients, Sums::kWhole);
    const Tensor workspace =
        at::empty({cuda::conv_backward_workspace(plan.params())}, args.conv.x.options().dtype(at::kByte));
    check_launch(cuda::conv_backward(plan.params(), workspace.mutable_data_ptr(), stream));
    plan.finish();
  }

  static void update(const ConvUpdateArgs& args, const Tensor& out) {
    const c10::OptionalDeviceGuard guard(args.x.device());
    const ConvUpdatePlan plan(args, out);
    check_launch(cuda::conv_update(plan.params(), current_stream(args.x)));
  }
};

}  // namespace

}  // namespace mamba::conv

TORCH_LIBRARY_IMPL(mamba, CUDA, m) {
  mamba::conv::Operators<mamba::conv::Cuda>::implement(m);
}
