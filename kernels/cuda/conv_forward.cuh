// The convolution: along time, where a lane takes some steps at once, or along channels, where it walks through time.
#pragma once

#include "cuda/conv_time.cuh"

namespace mamba::kernels::cuda {

/// kOneSequence: rows are not packed, which spares the search for bounds.
template <class T, int kVector, int kWidth, bool kOneSequence>
__global__ void __launch_bounds__(kConvThreads) conv_time_kernel(const __grid_constant__ ConvTask task) {
  constexpr int kRounds = conv_rounds(false), kRound = kVector * kWarpSize, kSteps = kRounds * kRound;
  const ConvParams& p = task.conv;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, width = width_of<kWidth>(p), first = lane * kVector;
  const ConvWindow window = ConvWindow::of_warp(p, task.tiles);
  if (window.channel >= p.dim) return;
  const T* const x = window.of<const T>(p.x);
  T* const out = window.of<T>(p.out);

  // Everything is on its way before anything is used.
  const bool is_whole = window.length >= kSteps;
  SeenSteps<T, kVector> steps[kRounds];
  const auto load = [&](bool whole) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) steps[round].load(x, window, round * kRound, first, whole);
  };
  is_whole ? load(true) : load(false);
  Taps taps;
  taps.load(p, width, window.channel);
  StateBefore<T> state;
  if constexpr (kOneSequence) state.load(p, window, width, window.begin + first);
  [[maybe_unused]] ConvBounds bounds;
  if constexpr (!kOneSequence) bounds = ConvBounds(p, window, kSteps, lane);
  const auto use = [&](bool whole) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int begin = round * kRound;
      if (!whole && begin >= window.length) break;
      float seen[kConvHalo + kVector], results[kVector];
      steps[round].widen_into(seen);
      if (kOneSequence && round == 0) state.put_before(window.begin + first, seen);
#pragma unroll
      for (int i = 0; i < kVector; ++i) results[i] = taps.pre(width, [&](int j) { return seen[kConvHalo + i - j]; });
      if (p.silu) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) results[i] = generic::activated(results[i]);
      }
      if (!kOneSequence && bounds.crosses(begin, begin + kRound)) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) results[i] = bounds.has(begin + first + i) ? results[i] : 0;
      }
      store_round(out, window, begin, first, whole, results);
    }
  };
  is_whole ? use(true) : use(false);

  const auto store_last = [&](int64_t index, int i) {
    const ConvTile tile = conv_sequence_tile(p, window.batch, index, window.begin);
    const SeenLine<T> seen(p, window.batch, window.channel, tile);
    Line<T>(p.last_state, tile.sequence, window.channel, 0)[i] = seen.last(tile, i);
  };
  if constexpr (kOneSequence) {
    if (window.length <= kSteps && lane < width - 1) store_last(0, lane);
  } else {
    __syncwarp();  // what was stored above is stored again
    const int end = window.length <= kSteps ? window.length + 1 : kSteps;
    bounds.for_each<4>(p, window, kSteps, lane, [&](int64_t bound, int step, int i) {
      const int time = step + i;
      const bool is_mine = i < kConvHalo && time >= 0 && time < kSteps;
      const int stop = is_mine && bound < conv_row_sequences(p) ? ConvBounds::at(p, window, bound + 1) : step;
      float seen[kConvTaps];
      load_seen(p, window, x, p.cu_seqlens ? bound : window.batch, step, time, is_mine && time < stop, seen);
      if (is_mine && time < stop) {
        const float sum = taps.pre(width, [&](int j) { return seen[kConvHalo - j]; });
        narrow_into(p.silu ? generic::activated(sum) : sum, out + time);
      }
      if (bound > 0 && step >= 0 && step < end && i < width - 1) store_last(bound - 1, i);
    });
  }
}

/// Zeroes what a tile zeroes of kVector channels, from a line's on.
template <class T, int kVector>
__device__ __noinline__ void zero_lines(Line<T> line, ConvTile tile, int steps) {
  for (int time = 0; time < steps; ++time) {
    if (tile.zeroes(time)) Elements<T, kVector>{}.store(reinterpret_cast<char*>(&line[time]));
  }
}

/// The states after a tile that is its sequence's last.
template <class T, int kVector>
__device__ __noinline__ void store_last_states(const ConvParams& p, ConvPlace place, int width) {
  for (int c = 0; c < kVector; ++c) {
    const SeenLine<T> seen(p, place.batch, place.channel + c, place.tile);
    const Line<T> last(p.last_state, place.tile.sequence, place.channel + c, 0);
    for (int i = 0; i < width - 1; ++i) last[i] = seen.last(place.tile, i);
  }
}

/// A thread walks through a tile of kVector channels, kAtOnce steps at a time; the next ones are loaded meanwhile.
template <class T, int kVector, int kWidth>
__global__ void __launch_bounds__(kConvThreads, conv_channel_blocks(false, sizeof(T)))
    conv_channel_kernel(const __grid_constant__ ConvTask task) {
  constexpr int kAtOnce = kVector * sizeof(T) < 16 ? 8 : 4;
  const ConvParams& p = task.conv;
  const int64_t vectors = p.dim / kVector, thread = static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x;
  if (thread >= vectors * task.tiles.per_row * p.batch) return;
  const ConvPlace place = ConvPlace::of_thread(p, task.tiles, thread, vectors, kVector);
  const ConvTile& tile = place.tile;
  const int width = width_of<kWidth>(p);
  const Line<const T> x_line(p.x, place.batch, place.channel, tile.window);
  const Line<T> out_line(p.out, place.batch, place.channel, tile.window);
  if (tile.zero_before || tile.zero_after) zero_lines<T, kVector>(out_line, tile, task.tiles.steps);
  if (tile.is_last) store_last_states<T, kVector>(p, place, width);
  const char* from = reinterpret_cast<const char*>(&x_line[tile.begin]);
  char* to = reinterpret_cast<char*>(&out_line[tile.begin]);
  const int from_step = byte_step(x_line), to_step = byte_step(out_line);
  struct Group {
    Elements<T, kVector> x[kAtOnce];
  };
  const auto load = [&](Group& group, int count) {
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      if (s < count) group.x[s].load(from + int64_t{s} * from_step);
    }
    from += int64_t{kAtOnce} * from_step;
  };
  Group group;
  int left = tile.end - tile.begin;
  load(group, left);
  Taps taps[kVector];
  float before[kConvHalo][kVector];  // the inputs of the steps before, oldest first
#pragma unroll
  for (int c = 0; c < kVector; ++c) taps[c].load(p, width, place.channel + c);
  load_before(p, place, width, x_line, before);
  for (; left > 0; left -= kAtOnce) {
    Group next;
    load(next, left - kAtOnce);
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      float now[kVector], out[kVector];
      group.x[s].widen_into(now);
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        out[c] = taps[c].pre(width, [&](int j) { return j == 0 ? now[c] : before[kConvHalo - j][c]; });
        if (p.silu) out[c] = generic::activated(out[c]);
#pragma unroll
        for (int i = 0; i + 1 < kConvHalo; ++i) before[i][c] = before[i + 1][c];
        before[kConvHalo - 1][c] = now[c];
      }
      Elements<T, kVector> elements;
      elements.narrow_from(out);
      if (s < left) elements.store(to + int64_t{s} * to_step);
    }
    to += int64_t{kAtOnce} * to_step;
    group = next;
  }
}

template <class T>
Error conv_forward_with(const ConvParams& params, ConvAccess access, CUstream_st* stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kChannels = conv_channels(false);
  const ConvTask task{params, conv_tiles(params, access, false)};
  const dim3 grid = conv_grid(params, task.tiles, access, false);
  return with_width(params, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    switch (access) {
      case ConvAccess::kTimeVectors:
        if (kWidth > 0 && !params.cu_seqlens) {
          return conv_launch(conv_time_kernel<T, kVector, kConvTaps, true>, grid, stream, task);
        }
        return conv_launch(conv_time_kernel<T, kVector, kWidth, false>, grid, stream, task);
      case ConvAccess::kTimeElements:
        return conv_launch(conv_time_kernel<T, 1, kWidth, false>, grid, stream, task);
      case ConvAccess::kChannelVectors:
        return conv_launch(conv_channel_kernel<T, kChannels, kWidth>, grid, stream, task);
      default:
        return conv_launch(conv_channel_kernel<T, 1, kWidth>, grid, stream, task);
    }
  });
}

}  // namespace mamba::kernels::cuda
