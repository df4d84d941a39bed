// What the convolution's backward knows of a channel: its sums over a tile, and the gradients at the edges of
// sequences.
#pragma once

#include "cuda/conv.cuh"

namespace mamba::kernels::cuda {

/// What a channel's tile adds to dweight, the last tap first, and to dbias.
struct TapSums {
  float weight[kConvTaps] = {}, bias = 0;

  /// A step with the input x[0] and, before it in memory, those of the steps before.
  __device__ __forceinline__ void add_step(int width, float dpre, const float* x) {
    bias += dpre;
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) {
      if (j < width) weight[j] = fmaf(dpre, x[-j], weight[j]);
    }
  }
  __device__ __forceinline__ void reduce_over_warp() {
#pragma unroll
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
#pragma unroll
      for (float& x : weight) x += __shfl_xor_sync(kWholeWarp, x, mask);
      bias += __shfl_xor_sync(kWholeWarp, bias, mask);
    }
  }
  __device__ __forceinline__ void store(const ConvGradTask& task, int64_t row_and_tile, int64_t channel) const {
    if (!task.sums) return;
    const int width = static_cast<int>(task.grad.conv.width);
    float* to = task.sums + (row_and_tile * task.grad.conv.dim + channel) * (width + 1);
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) {
      if (j < width) to[width - 1 - j] = weight[j];
    }
    to[width] = bias;
  }
};

/// What a channel of a tile is told.
template <class T>
struct GradLine {
  SeenLine<T> seen;
  Line<const T> dout, dlast_state;
  int width;
  bool silu;

  __device__ __forceinline__ GradLine(const ConvGradParams& g, int64_t batch, int64_t channel, const ConvTile& tile)
      : seen(g.conv, batch, channel, tile),
        dout(g.dout, batch, channel, tile.window),
        dlast_state(g.dlast_state, tile.sequence, channel, 0),
        width(static_cast<int>(g.conv.width)),
        silu(g.conv.silu) {}

  /// dpre of one step; 0 outside the sequence.
  __device__ float dpre(const Taps& taps, const ConvTile& tile, int time) const {
    if (time < tile.start || time >= tile.stop) return 0;
    const float gradient = widen(dout[time]);
    if (!silu) return gradient;
    return gradient * generic::activated_slope(taps.pre(width, [&](int j) { return widen(seen.at(tile, time - j)); }));
  }
  /// What last_state's gradient adds to that of the input at `time`.
  __device__ __forceinline__ float dlast(const ConvTile& tile, int time) const {
    const int i = time - (tile.stop - (width - 1));
    return dlast_state.first && i >= 0 && time < tile.stop ? widen(dlast_state[i]) : 0;
  }
};

/// The gradient of what a channel has seen at `time`, of x or of the initial state. The rare case stands apart, and
/// loads the taps again, so that the common one keeps all of its values in registers.
template <class T>
__device__ __noinline__ void store_exact_dx(const ConvGradParams& g, GradLine<T> line, ConvTile tile, int64_t channel,
                                            int time, T* to) {
  Taps taps;
  taps.load(g.conv, line.width, channel);
  float sum = 0;
#pragma unroll
  for (int j = kConvTaps - 1; j >= 0; --j) {
    if (j < line.width) sum = generic::tap(sum, taps.weight[j], line.dpre(taps, tile, time + j));
  }
  narrow_into(sum + line.dlast(tile, time), to);
}
/// Elements of a channel's dinitial_state from `first` on.
template <class T>
__device__ __forceinline__ void store_dinitial_state(const ConvGradParams& g, const GradLine<T>& line,
                                                     const ConvTile& tile, int64_t channel, int first, int after) {
  if (!g.dinitial_state.data) return;
  const Line<T> to(g.dinitial_state, tile.sequence, channel, 0);
  for (int i = first; i < after; ++i) {
    store_exact_dx(g, line, tile, channel, tile.start - (line.width - 1) + i, &to[i]);
  }
}

}  // namespace mamba::kernels::cuda
