// The CUDA kernels, on the current stream. Links no CUDA library of torch: the stream and the device come through
// torch's device-generic interfaces, so that one library serves torch with and without CUDA.
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend.h"
#include "mamba/kernels/scan.h"

namespace mamba {

namespace {

namespace cuda = kernels::cuda;

CUstream_st* current_stream(const Tensor& x) {
  const c10::impl::VirtualGuardImpl guard(x.device().type());
  return static_cast<CUstream_st*>(guard.getStream(x.device()).native_handle());
}

void check(cuda::Error error) {
  TORCH_CHECK(error == 0,
              "mamba: expected the CUDA kernel to be launched, but got the error: ", cuda::error_string(error),
              "; the library may have been built for other GPU architectures or need a newer driver, see "
              "`python -m mamba_ops info`");
}

struct Cuda {
  static void forward(const ScanArgs& args, const ScanOutputs& outputs) {
    const c10::OptionalDeviceGuard guard(args.u.device());
    const ScanPlan plan(args, outputs);
    check(cuda::forward(plan.params(), current_stream(args.u)));
  }

  static void backward(const ScanGradArgs& args, const GradientArray& gradients) {
    const c10::OptionalDeviceGuard guard(args.scan.u.device());
    CUstream_st* stream = current_stream(args.scan.u);
    ScanGradPlan plan(args, gradients);
    check(cuda::backward(plan.params(), stream));
    plan.finish([&](const Tensor& partial, const Tensor& total) {
      const int64_t reals = total.is_complex() ? 2 : 1;
      const bool is_double = total.element_size() == 8 * reals;
      check(cuda::ordered_sum(partial.const_data_ptr(), partial.size(0), total.numel() * reals, is_double,
                              total.mutable_data_ptr(), stream));
    });
  }

  static void update(const UpdateArgs& args, const Tensor& out) {
    const c10::OptionalDeviceGuard guard(args.x.device());
    const UpdatePlan plan(args, out);
    check(cuda::update(plan.params(), current_stream(args.x)));
  }
};

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, CUDA, m) {
  mamba::Operators<mamba::Cuda>::implement(m);
}
