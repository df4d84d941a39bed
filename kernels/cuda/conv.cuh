// What the CUDA kernels of the convolution share: taps, what a channel has seen, and the activation.
#pragma once

#include "cuda/conv.h"
#include "cuda/elements.cuh"
#include "cuda/launch.h"
#include "generic/conv.h"

namespace mamba::kernels::cuda {

/// One channel's weights, the last tap first: tap j meets the input j steps back.
struct Taps {
  float weight[kConvTaps], bias;

  __device__ __forceinline__ void load(const ConvParams& p, int64_t channel) {
    const float* from = static_cast<const float*>(p.weight) + channel * p.width;
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) weight[j] = j < p.width ? from[p.width - 1 - j] : 0;
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

/// Element `time` of what one channel of a tile's sequence has seen: before its start the initial state; 0 beyond both.
template <class T>
__device__ __forceinline__ float seen_at(const ConvParams& p, const ConvTile& tile, int64_t channel, int64_t time) {
  if (time >= tile.stop) return 0;
  if (time >= tile.start) return generic::load<T>(p.x, tile.batch, channel, time);
  const int64_t i = time - tile.start + p.width - 1;
  return i >= 0 && p.initial_state.data ? generic::load<T>(p.initial_state, tile.sequence, channel, i) : 0;
}

/// Element i of a channel's last_state, which is that much of what it has seen.
template <class T>
__device__ __forceinline__ void store_last_state(const ConvParams& p, const ConvTile& tile, int64_t channel, int i) {
  const float value = seen_at<T>(p, tile, channel, tile.stop - (p.width - 1) + i);
  generic::store<T>(p.last_state, tile.sequence, channel, i, value);
}

/// The lines, steps or channels, that a thread reads ahead of the first and behind the last of its own.
constexpr int kConvHalo = kConvTaps - 1;

}  // namespace mamba::kernels::cuda
