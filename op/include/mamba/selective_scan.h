/// Mamba's selective scan as libtorch operators: the public C++ functions.
///
/// Every function goes through torch's dispatcher (torch.ops.mamba.* in Python and TorchScript), so autograd, autocast
/// and the CPU and CUDA kernels apply as they do to a built-in operator. Link `mamba_ops::mamba_ops`, or only dlopen
/// libmamba_ops.so and call the operators by name.
///
/// The maths, from Gu & Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (arXiv 2312.00752):
///
///     delta' = delta + delta_bias;  delta' = softplus(delta') if delta_softplus
///     h_t    = exp(delta' A) h_{t-1} + delta' B_t u_t                 h_{-1} = initial_state, or 0
///     y_t    = sum over dstate of C_t h_t                             (complex A: twice the real part)
///     out    = (y + D u) * (silu(z) if z is given, else 1)
///
/// Symbols: batch, dim (channels), length (time), dstate, groups, sequences. Activation dtype: float32, float16,
/// bfloat16 or float64. Parameter dtype: float32, float16, bfloat16, and float64 when the activations are float64.
///
/// Errors are c10::ValueError (shapes, values), c10::TypeError (dtypes), c10::NotImplementedError and c10::Error
/// (devices), raised before anything is computed or changed.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

#define MAMBA_OPS_API __attribute__((visibility("default")))

namespace mamba {

/// u, delta, z: (batch, dim, length), activation dtype, any strides.
/// A: (dim, dstate) real parameter dtype or complex; or (dim): one state per channel.
/// B, C: (batch, dstate, length) or (batch, groups, dstate, length), activation dtype; or constant (dim, dstate),
///     parameter dtype. With complex A each may be real or of A's dtype.
/// D, delta_bias: (dim), parameter dtype.
/// initial_state: (batch, dim, dstate), or (sequences, dim, dstate) with cu_seqlens; parameter dtype, complex when A
/// is. cu_seqlens: (sequences + 1), int32 or int64: sequence i is the tokens [cu_seqlens[i], cu_seqlens[i + 1]) of the
/// one
///     batch row. Values are checked on the CPU only.
/// reverse: runs time from the last step to the first.
/// Returns out, (batch, dim, length), like u.
MAMBA_OPS_API at::Tensor selective_scan(const at::Tensor& u, const at::Tensor& delta, const at::Tensor& A,
                                        const at::Tensor& B, const at::Tensor& C,
                                        const std::optional<at::Tensor>& D = {},
                                        const std::optional<at::Tensor>& z = {},
                                        const std::optional<at::Tensor>& delta_bias = {}, bool delta_softplus = false,
                                        const std::optional<at::Tensor>& initial_state = {},
                                        const std::optional<at::Tensor>& cu_seqlens = {}, bool reverse = false);

/// The same, and last_state: (batch or sequences, dim, dstate), the state after the last step; float32 (float64 for
/// float64 activations), complex when A is. Differentiable, as initial_state is.
MAMBA_OPS_API std::tuple<at::Tensor, at::Tensor> selective_scan_with_state(
    const at::Tensor& u, const at::Tensor& delta, const at::Tensor& A, const at::Tensor& B, const at::Tensor& C,
    const std::optional<at::Tensor>& D = {}, const std::optional<at::Tensor>& z = {},
    const std::optional<at::Tensor>& delta_bias = {}, bool delta_softplus = false,
    const std::optional<at::Tensor>& initial_state = {}, const std::optional<at::Tensor>& cu_seqlens = {},
    bool reverse = false);

/// One decoding step; changes `state` in place and is not differentiable.
/// state: (slots, dim, dstate) or (slots, heads, head_dim, dstate), float32, float16, bfloat16 or float64.
/// x, dt, z: (batch, dim) or (batch, heads, head_dim), activation dtype.
/// A: (dim, dstate) or (heads, head_dim, dstate); D, dt_bias: (dim) or (heads, head_dim); parameter dtype, may be
///     expanded.
/// B, C: (batch, dstate) or (batch, groups, dstate), activation dtype or float32.
/// state_batch_indices: (batch), int32 or int64: the slot of each row, negative for padding (out 0, no slot touched).
///     Without it slots == batch.
/// Returns out, like x, computed from the new state before that is rounded to its dtype.
MAMBA_OPS_API at::Tensor selective_state_update(at::Tensor& state, const at::Tensor& x, const at::Tensor& dt,
                                                const at::Tensor& A, const at::Tensor& B, const at::Tensor& C,
                                                const std::optional<at::Tensor>& D = {},
                                                const std::optional<at::Tensor>& z = {},
                                                const std::optional<at::Tensor>& dt_bias = {}, bool dt_softplus = false,
                                                const std::optional<at::Tensor>& state_batch_indices = {});

/// A line for people: the library's version, the torch it was built for, CUDA and its architectures, the CPU level.
MAMBA_OPS_API std::string version();

}  // namespace mamba
