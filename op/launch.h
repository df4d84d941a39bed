// Launching the CUDA kernels. Links no CUDA library of torch: the stream and the device come through torch's
// device-generic interfaces, so that one library serves torch with and without CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "mamba/kernels/scan.h"

namespace mamba {

inline CUstream_st* current_stream(const at::Tensor& x) {
  const c10::impl::VirtualGuardImpl guard(x.device().type());
  return static_cast<CUstream_st*>(guard.getStream(x.device()).native_handle());
}

inline void check_launch(kernels::cuda::Error error) {
  TORCH_CHECK(error == 0,
              "mamba: expected the CUDA kernel to be launched, but got the error: ", kernels::cuda::error_string(error),
              "; the library may have been built for other GPU architectures or need a newer driver, see "
              "`python -m mamba_ops info`");
}

/// total = partial[0] + partial[1] + ... in this order.
inline void launch_ordered_sum(const at::Tensor& partial, const at::Tensor& total, CUstream_st* stream) {
  const int64_t reals = total.is_complex() ? 2 : 1;
  const bool is_double = total.element_size() == 8 * reals;
  check_launch(kernels::cuda::ordered_sum(partial.const_data_ptr(), partial.size(0), total.numel() * reals, is_double,
                                          total.mutable_data_ptr(), stream));
}

}  // namespace mamba
