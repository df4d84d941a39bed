// The convolution over vectors of channels, which walk through time together: one step after another, as conv_update
// takes them, hence with its bits. Nothing here is fused, so they are those of every ISA level.
#pragma once

#include "cpu/conv_level.h"
#include "cpu/convert.h"
#include "cpu/math.h"
#include "mamba/kernels/conv.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Neighbouring channels, one to a lane; there may be fewer than lanes. Offsets count elements.
template <class T>
class Lanes {
 public:
  static constexpr int kCount = kLanes<Wide<T>>;
  using V = Vec<Wide<T>>;

  MAMBA_INLINE Lanes(int64_t first, int64_t count) : first_(first), count_(static_cast<int>(count)) {}

  int64_t first() const { return first_; }
  int count() const { return count_; }

  MAMBA_INLINE V load(const Activation& x, int64_t row, int64_t time) const {
    const T* from =
        static_cast<const T*>(x.data) + row * x.batch_stride + first_ * x.dim_stride + time * x.length_stride;
    if (x.dim_stride == 1 && count_ == kCount) return load_wide<T>(from);
    T gathered[kCount] = {};
    for (int i = 0; i < count_; ++i) gathered[i] = from[i * x.dim_stride];
    return load_wide<T>(gathered);
  }
  MAMBA_INLINE void store(const Activation& x, int64_t row, int64_t time, const V& value) const {
    T* to = static_cast<T*>(x.data) + row * x.batch_stride + first_ * x.dim_stride + time * x.length_stride;
    const Storage<T> stored = narrowed<T>(value);
    if (x.dim_stride == 1 && count_ == kCount) return cpu::MAMBA_OPS_CPU_LEVEL::store(to, stored);
    for (int i = 0; i < count_; ++i) to[i * x.dim_stride] = T{stored[i]};
  }

  /// Of a parameter (dim, stride), wide: element `at` of each channel.
  MAMBA_INLINE V parameter(const void* data, int64_t stride, int64_t at) const {
    Wide<T> gathered[kCount] = {};
    const Wide<T>* from = static_cast<const Wide<T>*>(data) + first_ * stride + at;
    for (int i = 0; i < count_; ++i) gathered[i] = from[i * stride];
    return cpu::MAMBA_OPS_CPU_LEVEL::load<V>(gathered);
  }
  MAMBA_INLINE void store_parameter(void* data, int64_t stride, int64_t at, const V& value) const {
    Wide<T> scattered[kCount];
    memcpy(scattered, &value, sizeof(value));
    Wide<T>* to = static_cast<Wide<T>*>(data) + first_ * stride + at;
    for (int i = 0; i < count_; ++i) to[i * stride] = scattered[i];
  }

 private:
  const int64_t first_;
  const int count_;
};

/// The taps of some channels and the inputs they meet, oldest first. kWidth is the width, or 0 for one that is only
/// known when it runs.
template <class T, int kWidth>
struct Window {
  using V = Vec<Wide<T>>;
  static constexpr int kMost = kWidth > 0 ? kWidth : static_cast<int>(kMostConvTaps);

  const int width;
  V weight[kMost], input[kMost], bias;

  template <class Params>
  MAMBA_INLINE Window(const Params& p, const Lanes<T>& lanes) : width(kWidth > 0 ? kWidth : static_cast<int>(p.width)) {
    for (int k = 0; k < width; ++k) weight[k] = lanes.parameter(p.weight, width, k);
    bias = p.bias ? lanes.parameter(p.bias, 1, 0) : V{};
  }
  /// The inputs before the first step: all but the newest.
  MAMBA_INLINE void start(const Activation& states, int64_t row, const Lanes<T>& lanes) {
    for (int k = 0; k + 1 < width; ++k) input[k + 1] = states.data ? lanes.load(states, row, k) : V{};
  }
  MAMBA_INLINE void push(const V& x) {
    for (int k = 0; k + 1 < width; ++k) input[k] = input[k + 1];
    input[width - 1] = x;
  }
  MAMBA_INLINE V pre() const {
    V sum = bias;
    for (int k = 0; k < width; ++k) sum = sum + weight[k] * input[k];
    return sum;
  }
  /// All but the oldest input.
  MAMBA_INLINE void finish(const Activation& states, int64_t row, const Lanes<T>& lanes) const {
    for (int k = 0; k + 1 < width; ++k) lanes.store(states, row, k, input[k + 1]);
  }
};

template <class T, int kWidth>
void conv_forward(const ConvParams& p, const ConvPiece& piece) {
  using V = Vec<Wide<T>>;
  const Lanes<T> lanes(piece.channels.begin, piece.channels.end - piece.channels.begin);
  Window<T, kWidth> window(p, lanes);
  window.start(p.initial_state, piece.sequence, lanes);
  for (int64_t time = piece.start; time < piece.stop; ++time) {
    window.push(lanes.load(p.x, piece.batch, time));
    const V pre = window.pre();
    lanes.store(p.out, piece.batch, time, p.silu ? pre * sigmoid(pre) : pre);
  }
  window.finish(p.last_state, piece.sequence, lanes);
}

/// One pass: a step's dpre is worked out once, and the gradient of what was seen leaves when all taps have met it.
template <class T, int kWidth>
void conv_backward(const ConvGradParams& g, const ConvPiece& piece) {
  using V = Vec<Wide<T>>;
  const ConvParams& p = g.conv;
  const Lanes<T> lanes(piece.channels.begin, piece.channels.end - piece.channels.begin);
  Window<T, kWidth> window(p, lanes);
  window.start(p.initial_state, piece.sequence, lanes);
  const int width = window.width;
  V dweight[Window<T, kWidth>::kMost] = {}, dseen[Window<T, kWidth>::kMost] = {}, dbias{};
  // Element i of what was seen, the initial state first, leaves at step i.
  const auto leave = [&](int64_t i, V value) {
    const int64_t of_last = i - (piece.stop - piece.start);
    if (g.dlast_state.data && of_last >= 0) value = value + lanes.load(g.dlast_state, piece.sequence, of_last);
    if (i < width - 1) {
      if (g.dinitial_state.data) lanes.store(g.dinitial_state, piece.sequence, i, value);
    } else if (g.dx.data) {
      lanes.store(g.dx, piece.batch, piece.start + i - (width - 1), value);
    }
  };
  for (int64_t time = piece.start; time < piece.stop; ++time) {
    window.push(lanes.load(p.x, piece.batch, time));
    V dpre = g.dout.data ? lanes.load(g.dout, piece.batch, time) : V{};
    if (p.silu) {
      const V pre = window.pre(), s = sigmoid(pre);
      dpre = dpre * (s * (Wide<T>(1) + pre * (Wide<T>(1) - s)));
    }
    dbias = dbias + dpre;
    for (int k = 0; k < width; ++k) {
      dweight[k] = dweight[k] + dpre * window.input[k];
      dseen[k] = dseen[k] + dpre * window.weight[k];
    }
    leave(time - piece.start, dseen[0]);
    for (int k = 0; k + 1 < width; ++k) dseen[k] = dseen[k + 1];
    dseen[width - 1] = V{};
  }
  for (int k = 0; k + 1 < width; ++k) leave(piece.stop - piece.start + k, dseen[k]);
  if (g.dbias) lanes.store_parameter(g.dbias, 1, piece.sequence * p.dim, dbias);
  for (int k = 0; g.dweight && k < width; ++k) {
    lanes.store_parameter(g.dweight, width, piece.sequence * p.dim * width + k, dweight[k]);
  }
}

template <class T, int kWidth>
void conv_update(const ConvUpdateParams& p, const ConvPiece& piece) {
  using V = Vec<Wide<T>>;
  const Lanes<T> lanes(piece.channels.begin, piece.channels.end - piece.channels.begin);
  if (piece.sequence < 0) return lanes.store(p.out, piece.batch, 0, V{});
  Window<T, kWidth> window(p, lanes);
  window.start(p.state, piece.sequence, lanes);
  window.push(lanes.load(p.x, piece.batch, 0));
  const V pre = window.pre();
  lanes.store(p.out, piece.batch, 0, p.silu ? pre * sigmoid(pre) : pre);
  window.finish(p.state, piece.sequence, lanes);
}

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
