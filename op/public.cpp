// The public C++ functions: calls into the dispatcher.
#include "mamba/selective_scan.h"

#include <torch/version.h>

#include "arguments.h"
#include "mamba/kernels/scan.h"

namespace mamba {

Tensor selective_scan(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                      const OptTensor& D, const OptTensor& z, const OptTensor& delta_bias, bool delta_softplus,
                      const OptTensor& initial_state, const OptTensor& cu_seqlens, bool reverse) {
  return scan_entry<call_selective_scan>(u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state, cu_seqlens,
                                         reverse);
}

std::tuple<Tensor, Tensor> selective_scan_with_state(const Tensor& u, const Tensor& delta, const Tensor& A,
                                                     const Tensor& B, const Tensor& C, const OptTensor& D,
                                                     const OptTensor& z, const OptTensor& delta_bias,
                                                     bool delta_softplus, const OptTensor& initial_state,
                                                     const OptTensor& cu_seqlens, bool reverse) {
  return scan_entry<call_selective_scan_with_state>(u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state,
                                                    cu_seqlens, reverse);
}

Tensor selective_state_update(Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B,
                              const Tensor& C, const OptTensor& D, const OptTensor& z, const OptTensor& dt_bias,
                              bool dt_softplus, const OptTensor& state_batch_indices) {
  return update_entry<call_selective_state_update>(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus,
                                                   state_batch_indices);
}

std::string version() {
  return std::string("mamba_ops " MAMBA_OPS_VERSION ", built for torch " TORCH_VERSION ", CUDA " MAMBA_OPS_CUDA_VERSION
                     ", CPU level ") +
         kernels::cpu::level_name();
}

}  // namespace mamba

/// version() for callers that cannot call C++, such as ctypes. The text lives as long as the library.
extern "C" MAMBA_OPS_API const char* mamba_version();
const char* mamba_version() {
  static const std::string text = mamba::version();
  return text.c_str();
}
