// The operators' arguments as one value each, the dispatcher calls, and the adapters that registration needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace mamba {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

inline OptTensor optional(const Tensor& x) {
  return x.defined() ? OptTensor(x) : std::nullopt;
}
inline const Tensor& value(const OptTensor& x) {
  static const Tensor undefined;
  return x.has_value() ? *x : undefined;
}
inline Tensor value_or_undefined(const OptTensor& x) {
  return value(x);
}

/// The arguments of selective_scan; absent ones are undefined.
struct ScanArgs {
  Tensor u, delta, A, B, C, D, z, delta_bias;
  bool delta_softplus = false;
  Tensor initial_state, cu_seqlens;
  bool reverse = false;
};

/// The arguments that have gradients, in schema order.
constexpr size_t kGradients = 9;
enum Gradient : size_t { kU, kDelta, kA, kB, kC, kD, kZ, kDeltaBias, kInitialState };
using GradientArray = std::array<Tensor, kGradients>;
using GradientMask = std::array<bool, kGradients>;

inline GradientArray differentiable(const ScanArgs& a) {
  return {a.u, a.delta, a.A, a.B, a.C, a.D, a.z, a.delta_bias, a.initial_state};
}
inline ScanArgs with_differentiable(const ScanArgs& a, const GradientArray& x) {
  return {x[kU],        x[kDelta], x[kA], x[kB], x[kC], x[kD], x[kZ], x[kDeltaBias], a.delta_softplus, x[kInitialState],
          a.cu_seqlens, a.reverse};
}

/// The arguments of _selective_scan_bwd. Gradients of the outputs may be undefined: zero.
struct ScanGradArgs {
  Tensor dout, dlast_state;
  ScanArgs scan;
  Tensor checkpoints;
  GradientMask mask{};
};

/// The arguments of selective_state_update as the dispatcher passes them: a step is so short that counting references
/// to them again would show.
struct UpdateArgs {
  const Tensor &state, &x, &dt, &A, &B, &C;
  const OptTensor &D, &z, &dt_bias;
  bool dt_softplus;
  const OptTensor& state_batch_indices;
};

using OutAndState = std::tuple<Tensor, Tensor>;
using ForwardResult = std::tuple<Tensor, Tensor, Tensor>;  // out, last_state, checkpoints
/// In the order of Gradient; what the mask leaves out is an empty tensor.
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

inline BackwardResult as_tuple(const GradientArray& g) {
  return {g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8]};
}
inline GradientArray as_array(const BackwardResult& g) {
  return std::apply([](const auto&... x) { return GradientArray{x...}; }, g);
}

// Calls through the dispatcher: whatever key comes next runs.
Tensor call_selective_scan(const ScanArgs& a);
OutAndState call_selective_scan_with_state(const ScanArgs& a);
Tensor call_selective_state_update(const UpdateArgs& a);
ForwardResult call_selective_scan_fwd(const ScanArgs& a);
BackwardResult call_selective_scan_bwd(const ScanGradArgs& a);

/// Function pointers with the operators' own signatures, around functions of one argument.
template <auto kFunction>
auto scan_entry(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                const OptTensor& D, const OptTensor& z, const OptTensor& delta_bias, bool delta_softplus,
                const OptTensor& initial_state, const OptTensor& cu_seqlens, bool reverse) {
  return kFunction(ScanArgs{u, delta, A, B, C, value_or_undefined(D), value_or_undefined(z),
                            value_or_undefined(delta_bias), delta_softplus, value_or_undefined(initial_state),
                            value_or_undefined(cu_seqlens), reverse});
}

template <auto kFunction>
BackwardResult scan_grad_entry(const OptTensor& dout, const OptTensor& dlast_state, const Tensor& u,
                               const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                               const OptTensor& D, const OptTensor& z, const OptTensor& delta_bias, bool delta_softplus,
                               const OptTensor& initial_state, const OptTensor& cu_seqlens, bool reverse,
                               const Tensor& checkpoints, GradientMask output_mask) {
  return kFunction(ScanGradArgs{
      value_or_undefined(dout), value_or_undefined(dlast_state),
      ScanArgs{u, delta, A, B, C, value_or_undefined(D), value_or_undefined(z), value_or_undefined(delta_bias),
               delta_softplus, value_or_undefined(initial_state), value_or_undefined(cu_seqlens), reverse},
      checkpoints, output_mask});
}

template <auto kFunction>
Tensor update_entry(const Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B,
                    const Tensor& C, const OptTensor& D, const OptTensor& z, const OptTensor& dt_bias, bool dt_softplus,
                    const OptTensor& state_batch_indices) {
  return kFunction(UpdateArgs{state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices});
}

}  // namespace mamba
