// What the CUDA kernels of the convolution share: taps, the line of one channel in a tile, and where threads work.
#pragma once

#include "cuda/conv.h"
#include "cuda/elements.cuh"
#include "cuda/launch.h"
#include "generic/conv.h"

namespace mamba::kernels::cuda {

/// Taps of a problem: known when it is compiled, but for 0.
template <int kWidth>
__device__ __forceinline__ int width_of(const ConvParams& p) {
  return kWidth > 0 ? kWidth : static_cast<int>(p.width);
}
/// Calls f with the constant that width_of() wants.
template <class F>
Error with_width(const ConvParams& p, F&& f) {
  return p.width == kConvTaps ? f(std::integral_constant<int, kConvTaps>()) : f(std::integral_constant<int, 0>());
}

/// One channel's weights, the last tap first: tap j meets the input j steps back.
struct Taps {
  float weight[kConvTaps], bias;

  __device__ __forceinline__ void load(const ConvParams& p, int width, int64_t channel) {
    const float* from = static_cast<const float*>(p.weight) + channel * width;
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) weight[j] = j < width ? from[width - 1 - j] : 0;
    bias = p.bias ? static_cast<const float*>(p.bias)[channel] : 0;
  }

  /// seen(j): the input j steps back.
  template <class Seen>
  __device__ __forceinline__ float pre(int width, Seen&& seen) const {
    float sum = bias;
#pragma unroll
    for (int j = kConvTaps - 1; j >= 0; --j) {
      if (j < width) sum = generic::tap(sum, weight[j], seen(j));
    }
    return sum;
  }
};

/// Steps before and after its own that a thread's results depend on.
constexpr int kConvHalo = kConvTaps - 1;

/// One channel of a tensor: of an activation from the tile's window on, of a state from its first element on.
template <class T>
struct Line {
  T* first = nullptr;
  int64_t stride = 0;

  Line() = default;
  __device__ __forceinline__ Line(const Activation& x, int64_t batch, int64_t channel, int64_t time) {
    if (!x.data) return;
    stride = x.length_stride;
    first = static_cast<T*>(x.data) + batch * x.batch_stride + channel * x.dim_stride + time * stride;
  }
  __device__ __forceinline__ T& operator[](int time) const { return first[time * stride]; }
};

/// From one step to the next, in bytes; conv_access() sees to it that some of them fit.
template <class T>
__device__ __forceinline__ int byte_step(const Line<T>& line) {
  return static_cast<int>(line.stride * static_cast<int64_t>(sizeof(T)));
}

/// What one channel of a tile's sequence has seen: before its start the initial state, 0 beyond both.
template <class T>
struct SeenLine {
  Line<const T> x, initial_state;
  int before;  // elements of the state

  __device__ __forceinline__ SeenLine(const ConvParams& p, int64_t batch, int64_t channel, const ConvTile& tile)
      : x(p.x, batch, channel, tile.window),
        initial_state(p.initial_state, tile.sequence, channel, 0),
        before(static_cast<int>(p.width) - 1) {}
  __device__ __forceinline__ T at(const ConvTile& tile, int time) const {
    const int i = time - tile.start + before;
    const T* from = i >= before ? &x[time] : initial_state.first ? &initial_state[i] : nullptr;
    return from && i >= 0 && time < tile.stop ? *from : T();
  }
  /// Element i of last_state, which is that much of what the channel has seen.
  __device__ __forceinline__ T last(const ConvTile& tile, int i) const { return at(tile, tile.stop - before + i); }
};

/// Where a thread works: a tile of a row, and a channel, or the first of some.
struct ConvPlace {
  int64_t row_and_tile, batch, channel;
  ConvTile tile;

  /// Along channels: `vectors` threads have neighbouring channels of the same tile.
  static __device__ __forceinline__ ConvPlace of_thread(const ConvParams& p, const ConvTiles& tiles, int64_t thread,
                                                        int64_t vectors, int vector) {
    const bool is_narrow = thread >> 32 == 0;
    const int64_t row = is_narrow ? static_cast<uint32_t>(thread) / static_cast<uint32_t>(vectors) : thread / vectors;
    const uint32_t batch = static_cast<uint32_t>(row) / static_cast<uint32_t>(tiles.per_row);
    const int64_t index = row - batch * tiles.per_row;
    return {row, batch, (thread - row * vectors) * vector, conv_tile(p, tiles, batch, index)};
  }
};

/// The kConvHalo steps before a tile's first, oldest first, of the kVector channels of a thread.
template <class T, int kVector>
__device__ __forceinline__ void load_before(const ConvParams& p, const ConvPlace& place, int width,
                                            const Line<const T>& x_line, float (&before)[kConvHalo][kVector]) {
  const ConvTile& tile = place.tile;
  Elements<T, kVector> steps[kConvHalo] = {};
#pragma unroll
  for (int i = 0; i < kConvHalo; ++i) {
    const int time = tile.begin - kConvHalo + i, at = time - tile.start + width - 1;
    if (tile.begin == tile.end) continue;
    if (time >= tile.start) {
      steps[i].load(reinterpret_cast<const char*>(&x_line[time]));
    } else if (p.initial_state.data && at >= 0) {
      const Line<const T> state(p.initial_state, tile.sequence, place.channel, at);
      T x[kVector];
#pragma unroll
      for (int c = 0; c < kVector; ++c) x[c] = state.first[c * p.initial_state.dim_stride];
      steps[i] = Elements<T, kVector>::of(x);
    }
  }
#pragma unroll
  for (int i = 0; i < kConvHalo; ++i) steps[i].widen_into(before[i]);
}

/// Calls f with whether the silu follows, as a constant: the compiler does not see that it is the same in each step.
template <class F>
__device__ __forceinline__ void with_silu(const ConvParams& p, F&& f) {
  if (p.silu) {
    f(std::true_type());
  } else {
    f(std::false_type());
  }
}

}  // namespace mamba::kernels::cuda
