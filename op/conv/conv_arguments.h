// The arguments of the convolution's operators, the dispatcher calls, and the adapters that registration needs: as
// ../arguments.h has them for the scan.
#pragma once

#include "arguments.h"

namespace mamba::conv {

struct ConvArgs {
  Tensor x, weight, bias, initial_state, cu_seqlens;
  bool silu = false;
};

/// The arguments that have gradients, in schema order.
constexpr size_t kGradients = 4;
enum Gradient : size_t { kX, kWeight, kBias, kInitialState };
using GradientArray = std::array<Tensor, kGradients>;
using GradientMask = std::array<bool, kGradients>;

inline GradientArray differentiable(const ConvArgs& a) {
  return {a.x, a.weight, a.bias, a.initial_state};
}

struct ConvGradArgs {
  Tensor dout, dlast_state;  // undefined: zero
  ConvArgs conv;
  GradientMask mask{};
};

/// As the dispatcher passes them: see UpdateArgs.
struct ConvUpdateArgs {
  const Tensor &conv_state, &x, &weight;
  const OptTensor& bias;
  bool silu;
  const OptTensor& state_batch_indices;
};

using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;

inline BackwardResult as_tuple(const GradientArray& g) {
  return {g[0], g[1], g[2], g[3]};
}

OutAndState call_causal_conv1d(const ConvArgs& a);
BackwardResult call_causal_conv1d_bwd(const ConvGradArgs& a);
Tensor call_causal_conv1d_update(const ConvUpdateArgs& a);

template <auto kFunction>
OutAndState conv_entry(const Tensor& x, const Tensor& weight, const OptTensor& bias, const OptTensor& initial_state,
                       const OptTensor& cu_seqlens, bool silu) {
  return kFunction(ConvArgs{x, weight, value_or_undefined(bias), value_or_undefined(initial_state),
                            value_or_undefined(cu_seqlens), silu});
}

template <auto kFunction>
BackwardResult conv_grad_entry(const OptTensor& dout, const OptTensor& dlast_state, const Tensor& x,
                               const Tensor& weight, const OptTensor& bias, const OptTensor& initial_state,
                               const OptTensor& cu_seqlens, bool silu, GradientMask output_mask) {
  return kFunction(ConvGradArgs{value_or_undefined(dout), value_or_undefined(dlast_state),
                                ConvArgs{x, weight, value_or_undefined(bias), value_or_undefined(initial_state),
                                         value_or_undefined(cu_seqlens), silu},
                                output_mask});
}

template <auto kFunction>
Tensor conv_update_entry(const Tensor& conv_state, const Tensor& x, const Tensor& weight, const OptTensor& bias,
                         bool silu, const OptTensor& state_batch_indices) {
  return kFunction(ConvUpdateArgs{conv_state, x, weight, bias, silu, state_batch_indices});
}

}  // namespace mamba::conv
