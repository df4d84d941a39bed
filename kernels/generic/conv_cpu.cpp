// The generic convolution on the CPU.
#include "generic/conv_cpu.h"

#include "generic/conv.h"
#include "generic/select.h"

namespace mamba::kernels::generic::cpu {

namespace {

/// f(Type<T>{}, piece) for the pieces of a range.
template <class F>
void for_each(ScalarType type, Range range, F&& f) {
  generic::select(type, [&](auto activation) {
    for (int64_t i = range.begin; i < range.end; ++i) f(activation, i);
  });
}

}  // namespace

// A piece is a channel of a batch row, or one of the states.
int64_t conv_forward_work(const ConvParams& params) {
  return (params.batch + params.sequences) * params.dim;
}

void conv_forward(const ConvParams& params, Range range) {
  for_each(params.activation_type, range, [&](auto activation, int64_t i) {
    using T = typename decltype(activation)::type;
    const int64_t row = i / params.dim, channel = i % params.dim;
    if (row >= params.batch) return generic::conv_last_state<T>(params, row - params.batch, channel);
    for (int64_t t = 0; t < params.length; ++t) generic::conv_forward<T>(params, row, channel, t);
  });
}

int64_t conv_dpre_work(const ConvGradParams& params) {
  return params.conv.batch * params.conv.dim;
}

void conv_dpre(const ConvGradParams& params, Range range) {
  for_each(params.conv.activation_type, range, [&](auto activation, int64_t i) {
    using T = typename decltype(activation)::type;
    for (int64_t t = 0; t < params.conv.length; ++t) {
      generic::conv_dpre<T>(params, i / params.conv.dim, i % params.conv.dim, t);
    }
  });
}

int64_t conv_backward_work(const ConvGradParams& params) {
  return params.conv.sequences * params.conv.dim;
}

void conv_backward(const ConvGradParams& params, Range range) {
  for_each(params.conv.activation_type, range, [&](auto activation, int64_t i) {
    generic::conv_backward<typename decltype(activation)::type>(params, i / params.conv.dim, i % params.conv.dim);
  });
}

int64_t conv_update_work(const ConvUpdateParams& params) {
  return params.rows * params.dim;
}

void conv_update(const ConvUpdateParams& params, Range range) {
  for_each(params.activation_type, range, [&](auto activation, int64_t i) {
    generic::conv_update<typename decltype(activation)::type>(params, i / params.dim, i % params.dim);
  });
}

}  // namespace mamba::kernels::generic::cpu
