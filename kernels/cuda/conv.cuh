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

// Along time vectors are loaded whole also at a sequence's edges, and what is not the sequence's is masked when it is
// used, so that nobody waits. What crosses the end of the row moves one by one, and so do stores at edges: out of line,
// so that all others keep their registers.

template <class T, int kVector>
__device__ __noinline__ Elements<T, kVector> load_at_row_end(Line<const T> line, int length, int time) {
  T x[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = time + i < length ? line[time + i] : T();
  return Elements<T, kVector>::of(x);
}
template <class T, int kVector>
__device__ __noinline__ void store_at_edge(Line<T> line, ConvTile tile, int time, Elements<T, kVector> elements) {
  T x[kVector];
  elements.take_apart(x);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const bool is_zero = tile.zeroes(time + i);
    if (is_zero || tile.has(time + i)) line[time + i] = is_zero ? T() : x[i];
  }
}

/// kVector steps, of which those from `begin` to `end` are needed; the others are anything.
template <class T, int kVector>
__device__ __forceinline__ Elements<T, kVector> load_steps(const Line<const T>& line, const ConvTile& tile, int time,
                                                           int begin, int end) {
  Elements<T, kVector> elements{};
  if (time >= end || time + kVector <= begin) return elements;
  if (time + kVector > tile.length) return load_at_row_end<T, kVector>(line, tile.length, time);
  elements.load(reinterpret_cast<const char*>(line.first + time));
  return elements;
}
/// The initial state, if a tile has a use for it: its last element comes last.
template <class T>
struct StateBefore {
  T element[kConvHalo];

  __device__ __forceinline__ StateBefore(const SeenLine<T>& seen, const ConvTile& tile) {
    const bool is_needed = seen.initial_state.first && tile.start > -kConvHalo;
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) {
      const int at = seen.before - kConvHalo + i;
      element[i] = is_needed && at >= 0 ? seen.initial_state[at] : T();
    }
  }
};
/// kVector steps of what a channel has seen, from what load_steps() made of x.
template <class T, int kVector>
__device__ __forceinline__ void widen_seen(const Elements<T, kVector>& elements, const StateBefore<T>& state,
                                           const ConvTile& tile, int time, float (&x)[kVector]) {
  elements.widen_into(x);
  if (time >= tile.start && time + kVector <= tile.stop) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const int to_start = tile.start - (time + i);
    if (to_start > 0 || time + i >= tile.stop) x[i] = 0;
#pragma unroll
    for (int back = 1; back <= kConvHalo; ++back) {
      if (to_start == back) x[i] = widen(state.element[kConvHalo - back]);
    }
  }
}
/// Stores the steps that the tile has, and zeroes those that it zeroes.
template <class T, int kVector>
__device__ __forceinline__ void store_steps(const Line<T>& line, const ConvTile& tile, int time,
                                            const float (&x)[kVector]) {
  Elements<T, kVector> elements;
  elements.narrow_from(x);
  if (tile.has_all(time, kVector)) {
    elements.store(reinterpret_cast<char*>(line.first + time));
  } else if (tile.has_any(time, kVector) || tile.zeroes(time) || tile.zeroes(time + kVector - 1)) {
    store_at_edge<T, kVector>(line, tile, time, elements);
  }
}

/// Along time a warp takes a tile of one channel in rounds of kVector steps a lane. The steps just before and after a
/// lane's own are those of its neighbours, and beyond the first and last lane those of the rounds before and after.
template <int kVector>
struct LaneWindow {
  static constexpr int kRound = kVector * kWarpSize, kOwn = kVector < kConvHalo ? kVector : kConvHalo;
  static constexpr int kNeighbours = (kConvHalo + kVector - 1) / kVector;  // that hold the halo

  /// Those that have a step of the tile from `begin` on; all, if there is something to zero. -1: before the window.
  struct Rounds {
    int first, after;

    __device__ __forceinline__ Rounds(const ConvTile& tile, const ConvTiles& tiles, int begin, bool all)
        : first(begin < 0 ? -1
                : all     ? 0
                          : begin / kRound),
          after(all ? tiles.steps() / kRound : (tile.end + kRound - 1) / kRound) {}
  };

  /// before[i]: the step kConvHalo - i before the lane's first; `previous` are a lane's steps in the round before.
  static __device__ __forceinline__ void steps_before(const float (&own)[kVector], const float (&previous)[kVector],
                                                      int lane, float* before) {
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) {
      const int back = (kConvHalo - i + kVector - 1) / kVector, element = back * kVector - (kConvHalo - i);
      const float sent = lane >= kWarpSize - back ? previous[element] : own[element];
      before[i] = __shfl_sync(kWholeWarp, sent, (lane - back) & (kWarpSize - 1));
    }
  }
  /// after[i]: the step i + 1 after the lane's last; `next` are a lane's first steps in the round after.
  static __device__ __forceinline__ void steps_after(const float (&own)[kVector], const float (&next)[kOwn], int lane,
                                                     float* after) {
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) {
      const int on = i / kVector + 1, element = i % kVector;
      const float sent = lane < on ? next[element] : own[element];
      after[i] = __shfl_sync(kWholeWarp, sent, (lane + on) & (kWarpSize - 1));
    }
  }
};

/// conv_sequence(), by the lanes of a warp together.
__device__ __forceinline__ int64_t sequence_by_warp(const ConvParams& p, const ConvTiles& tiles, int64_t index,
                                                    int lane) {
  int64_t low = 0, high = p.sequences;
  while (high - low > 1) {
    const int64_t apart = (high - low + kWarpSize - 1) / kWarpSize, probe = low + lane * apart;
    const unsigned begun = __ballot_sync(kWholeWarp, probe < high && conv_begins(p, tiles, probe, index));
    const int last = begun ? __popc(begun) - 1 : 0;
    low += last * apart;
    high = low + apart < high ? low + apart : high;
  }
  return low;
}

/// Where a thread works: a tile of a row, and a channel, or the first of some.
struct ConvPlace {
  int64_t row_and_tile, batch, channel;
  ConvTile tile;

  /// Along time: warps of a block have neighbouring channels, perhaps beyond the last.
  static __device__ __forceinline__ ConvPlace of_warp(const ConvParams& p, const ConvTiles& tiles, int lane) {
    constexpr unsigned kWarps = kConvThreads / kWarpSize;
    const unsigned channel_blocks = static_cast<unsigned>((p.dim + kWarps - 1) / kWarps);
    const unsigned per_row = static_cast<unsigned>(tiles.per_row);
    const unsigned row = blockIdx.x / channel_blocks, batch = row / per_row, index = row - batch * per_row;
    const int64_t sequence = p.cu_seqlens ? sequence_by_warp(p, tiles, index, lane) : batch;
    return {row, batch, (blockIdx.x - row * channel_blocks) * kWarps + threadIdx.x / kWarpSize,
            conv_tile(p, tiles, index, sequence)};
  }
  /// Along channels: `vectors` threads have neighbouring channels of the same tile.
  static __device__ __forceinline__ ConvPlace of_thread(const ConvParams& p, const ConvTiles& tiles, int64_t thread,
                                                        int64_t vectors, int vector) {
    const bool is_narrow = thread >> 32 == 0;
    const int64_t row = is_narrow ? static_cast<uint32_t>(thread) / static_cast<uint32_t>(vectors) : thread / vectors;
    const uint32_t batch = static_cast<uint32_t>(row) / static_cast<uint32_t>(tiles.per_row);
    const int64_t index = row - batch * tiles.per_row;
    const int64_t sequence = p.cu_seqlens ? conv_sequence(p, tiles, index) : batch;
    return {row, batch, (thread - row * vectors) * vector, conv_tile(p, tiles, index, sequence)};
  }
};

}  // namespace mamba::kernels::cuda
