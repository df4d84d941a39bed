// Along time: a warp takes a window of one channel's row, whatever sequences lie in it, in rounds of some steps a lane.
// Loads follow from the window alone. Steps near the bounds of sequences get wrong results at first, and the right ones
// by themselves in the end.
#pragma once

#include "cuda/conv.cuh"

namespace mamba::kernels::cuda {

/// A warp's window, and its channel, perhaps beyond the last.
struct ConvWindow {
  int64_t row_and_window, batch, channel, begin;
  int length;  // steps of the row from `begin` on, or far

  static constexpr unsigned kWarps = kConvThreads / kWarpSize;

  /// A block for some channels, a window and a row; all in a row themselves where the grid has no room for that.
  static dim3 grid(const ConvParams& p, const ConvTiles& tiles) {
    constexpr int64_t kMost = 65535;
    const int64_t channel_blocks = ceil_div(p.dim, int64_t{kWarps});
    if (tiles.per_row > kMost || p.batch > kMost) {
      return dim3(static_cast<unsigned>(channel_blocks * tiles.per_row * p.batch));
    }
    return dim3(static_cast<unsigned>(channel_blocks), static_cast<unsigned>(tiles.per_row),
                static_cast<unsigned>(p.batch));
  }
  static __device__ __forceinline__ ConvWindow of_warp(const ConvParams& p, const ConvTiles& tiles) {
    unsigned channel_block = blockIdx.x, index = blockIdx.y, batch = blockIdx.z;
    const unsigned per_row = static_cast<unsigned>(tiles.per_row);
    if (gridDim.y * gridDim.z == 1) {
      const unsigned channel_blocks = (static_cast<unsigned>(p.dim) + kWarps - 1) / kWarps;
      const unsigned row = channel_block / channel_blocks;
      channel_block -= row * channel_blocks;
      batch = row / per_row;
      index = row - batch * per_row;
    }
    ConvWindow window;
    window.row_and_window = static_cast<int64_t>(batch) * per_row + index;
    window.batch = batch;
    window.channel = channel_block * kWarps + threadIdx.x / kWarpSize;
    window.begin = static_cast<int64_t>(index) * tiles.steps;
    window.length = conv_steps_from(window.begin, p.length);
    return window;
  }

  /// The window's steps, which follow each other in memory.
  template <class T>
  __device__ __forceinline__ T* of(const Activation& x) const {
    return static_cast<T*>(x.data) + batch * x.batch_stride + channel * x.dim_stride + begin;
  }
};

// What crosses the end of the row moves one by one: out of line, so that all else keeps its registers.

template <class T, int kVector>
__device__ __noinline__ Elements<T, kVector> load_at_row_end(const T* from, int steps) {
  T x[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = i < steps ? from[i] : T();
  return Elements<T, kVector>::of(x);
}
template <class T, int kVector>
__device__ __noinline__ void store_at_row_end(T* to, int steps, Elements<T, kVector> elements) {
  T x[kVector];
  elements.take_apart(x);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i < steps) to[i] = x[i];
  }
}

/// A lane's steps of a round that begins at `begin` of a window; steps that the row does not have are anything.
/// `is_whole`: it has all.
template <class T, int kVector>
__device__ __forceinline__ void load_round(const T* steps, const ConvWindow& window, int begin, int first,
                                           bool is_whole, Elements<T, kVector>& own) {
  const int time = begin + first;
  if (is_whole || begin + kVector * kWarpSize <= window.length) {
    own.load(reinterpret_cast<const char*>(steps + time));
  } else if (time < window.length) {
    own = load_at_row_end<T, kVector>(steps + time, window.length - time);
  }
}
template <class T, int kVector>
__device__ __forceinline__ void store_round(T* steps, const ConvWindow& window, int begin, int first, bool is_whole,
                                            const float (&x)[kVector]) {
  const int time = begin + first;
  Elements<T, kVector> elements;
  elements.narrow_from(x);
  if (is_whole || begin + kVector * kWarpSize <= window.length) {
    elements.store(reinterpret_cast<char*>(steps + time));
  } else if (time < window.length) {
    store_at_row_end<T, kVector>(steps + time, window.length - time, elements);
  }
}

/// A lane's steps of a round, and those before that its results depend on, as they came from memory.
template <class T, int kVector>
struct SeenSteps {
  static constexpr int kPieces = kVector == 1 ? kConvHalo : 1, kPiece = kVector == 1 ? 1 : 4;

  Elements<T, kPiece> before[kPieces];
  Elements<T, kVector> own;

  __device__ __forceinline__ void load(const T* steps, const ConvWindow& window, int begin, int first, bool is_whole) {
    const int time = begin + first;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int from = time - (kPieces - i) * kPiece;
      if ((is_whole || time < window.length) && (from >= 0 || window.begin > 0)) {
        before[i].load(reinterpret_cast<const char*>(steps + from));
      }
    }
    load_round(steps, window, begin, first, is_whole, own);
  }
  /// kConvHalo steps before the lane's own, and these.
  __device__ __forceinline__ void widen_into(float (&x)[kConvHalo + kVector]) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      float piece[kPiece];
      before[i].widen_into(piece);
#pragma unroll
      for (int k = 0; k < kPiece; ++k) {
        const int at = kConvHalo - (kPieces - i) * kPiece + k;
        if (at >= 0) x[at] = piece[k];
      }
    }
    float last[kVector];
    own.widen_into(last);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[kConvHalo + i] = last[i];
  }
};

/// The initial state as the steps before a row that is one sequence.
template <class T>
struct StateBefore {
  T element[kConvHalo] = {};

  /// `time`, counted in the row, is the lane's first.
  __device__ __forceinline__ void load(const ConvParams& p, const ConvWindow& window, int width, int64_t time) {
    if (!p.initial_state.data || time >= kConvHalo) return;
    const Line<const T> state(p.initial_state, window.batch, window.channel, 0);
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) {
      const int before = static_cast<int>(time) - kConvHalo + i, at = before + width - 1;
      if (before < 0 && at >= 0) element[i] = state[at];
    }
  }
  __device__ __forceinline__ void put_before(int64_t time, float* x) const {
    if (time >= kConvHalo) return;
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) {
      if (time - kConvHalo + i < 0) x[i] = widen(element[i]);
    }
  }
};

/// The bounds of a row that lie at or before `time`, counted by the lanes of a warp together.
__device__ __forceinline__ int64_t conv_bounds_until(const ConvParams& p, int64_t time, int lane) {
  int64_t low = 0, high = conv_row_sequences(p) + 1;
  while (high > low) {
    const int64_t apart = (high - low + kWarpSize - 1) / kWarpSize, probe = low + lane * apart;
    const unsigned begun = __ballot_sync(kWholeWarp, probe < high && conv_row_bound(p, probe) <= time);
    if (begun == 0) break;
    low += (__popc(begun) - 1) * apart + 1;
    high = low + apart - 1 < high ? low + apart - 1 : high;
  }
  return low;
}

/// Bounds of sequences around a window. All steps are counted from the window's begin.
struct ConvBounds {
  int64_t first;    // of the bounds after the window's begin - kConvHalo
  int near;         // first + lane, or far
  int start, stop;  // of all sequences
  bool are_many;    // more than the lanes hold may lie in the window

  ConvBounds() = default;
  __device__ __forceinline__ ConvBounds(const ConvParams& p, const ConvWindow& window, int steps, int lane) {
    first = conv_bounds_until(p, window.begin - kConvHalo, lane);
    near = at(p, window, first + lane);
    start = at(p, window, 0);
    stop = at(p, window, conv_row_sequences(p));
    are_many = __shfl_sync(kWholeWarp, near, kWarpSize - 1) < steps;
  }
  static __device__ __forceinline__ int at(const ConvParams& p, const ConvWindow& window, int64_t bound) {
    return bound > conv_row_sequences(p) ? kConvFar : conv_steps_from(window.begin, conv_row_bound(p, bound));
  }

  /// Whether some steps of a round are the first kConvHalo of a sequence, or of none.
  __device__ __forceinline__ bool meets(int begin, int end) const {
    const bool is_near = near > begin - kConvHalo && near < end;
    return __any_sync(kWholeWarp, is_near) || are_many || crosses(begin, end);
  }
  /// Whether some steps are of no sequence.
  __device__ __forceinline__ bool crosses(int begin, int end) const { return begin < start || end > stop; }
  __device__ __forceinline__ bool has(int time) const { return time >= start && time < stop; }

  /// Bit i: whether step time + i, of a round that ends at `end`, is among the first kConvHalo of its sequence, or of
  /// none.
  template <int kVector>
  __device__ __forceinline__ unsigned met(const ConvParams& p, const ConvWindow& window, int time, int end,
                                          int lane) const {
    unsigned steps = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) steps |= has(time + i) ? 0u : 1u << i;
    int bound = near;
    for (int64_t from = first;;) {
      for (unsigned left = __ballot_sync(kWholeWarp, bound < end); left; left &= left - 1) {
        const int after = __shfl_sync(kWholeWarp, bound, __ffs(static_cast<int>(left)) - 1) - time;
        if (after > -kConvHalo && after < kVector) steps |= ((1u << kConvHalo) - 1) << (after + kConvHalo) >> kConvHalo;
      }
      if (__shfl_sync(kWholeWarp, bound, kWarpSize - 1) >= end) return steps;
      from += kWarpSize;
      bound = at(p, window, from + lane);
    }
  }

  /// Calls f(bound, its step, i) by kLanes lanes i for each bound within kConvHalo steps of the window, by all lanes
  /// at once: bounds after those are further away.
  template <int kLanes, class F>
  __device__ __forceinline__ void for_each(const ConvParams& p, const ConvWindow& window, int steps, int lane,
                                           F&& f) const {
    constexpr int kAtOnce = kWarpSize / kLanes;
    int step = 0;
    for (int64_t from = first; step < steps + kConvHalo; from += kAtOnce) {
      const int64_t bound = from + lane / kLanes;
      step = at(p, window, bound);
      f(bound, step, lane % kLanes);
      step = __shfl_sync(kWholeWarp, step, kWarpSize - 1);
    }
  }
};

/// Blocks of a kernel along time or along channels.
inline dim3 conv_grid(const ConvParams& p, const ConvTiles& tiles, ConvAccess access, bool is_backward) {
  if (is_along_time(access)) return ConvWindow::grid(p, tiles);
  const int64_t channels = access == ConvAccess::kChannelVectors ? conv_channels(is_backward) : 1;
  return dim3(static_cast<unsigned>(ceil_div(p.batch * tiles.per_row * (p.dim / channels), kConvThreads)));
}
template <class Task>
Error conv_launch(void (*kernel)(Task), dim3 grid, CUstream_st* stream, const Task& task) {
  kernel<<<grid, kConvThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

/// x[kConvHalo - j]: what step `time` of a window sees j steps back, if its sequence, which begins at `start`, has it.
template <class T>
__device__ __forceinline__ void load_seen(const ConvParams& p, const ConvWindow& window, const T* steps,
                                          int64_t sequence, int start, int time, bool has_it, float (&x)[kConvTaps]) {
  const Line<const T> state(p.initial_state, sequence, window.channel, 0);
  const int width = static_cast<int>(p.width);
  const T* from[kConvTaps];  // all of them before a load waits
#pragma unroll
  for (int j = 0; j < kConvTaps; ++j) {
    const int at = time - j - start + width - 1;
    const T* const before = state.first && at >= 0 ? &state[at] : nullptr;
    from[j] = !has_it ? nullptr : time - j >= start ? steps + (time - j) : before;
  }
  T elements[kConvTaps];
#pragma unroll
  for (int j = 0; j < kConvTaps; ++j) elements[j] = from[j] ? *from[j] : T();
#pragma unroll
  for (int j = 0; j < kConvTaps; ++j) x[kConvHalo - j] = widen(elements[j]);
}

}  // namespace mamba::kernels::cuda
