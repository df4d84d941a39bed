// The convolution: along time, where a lane takes some steps at once, or along channels, where it walks through time.
#pragma once

#include "cuda/conv.cuh"

namespace mamba::kernels::cuda {

template <class T, int kVector, int kRounds, int kWidth>
__global__ void __launch_bounds__(kConvThreads) conv_time_kernel(const __grid_constant__ ConvTask task) {
  using Window = LaneWindow<kVector>;
  const ConvParams& p = task.conv;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, width = width_of<kWidth>(p);
  const ConvPlace place = ConvPlace::of_warp(p, task.tiles, lane);
  const ConvTile& tile = place.tile;
  if (place.channel >= p.dim) return;
  const SeenLine<T> seen(p, place.batch, place.channel, tile);
  const Line<T> out_line(p.out, place.batch, place.channel, tile.window);

  // Everything is on its way before anything is used.
  const int first = lane * kVector;
  Elements<T, kVector> words[kRounds], words_before{};
  if (lane >= kWarpSize - Window::kNeighbours) {
    words_before = load_steps<T, kVector>(seen.x, tile, first - Window::kRound, tile.start, tile.stop);
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    words[round] = load_steps<T, kVector>(seen.x, tile, first + round * Window::kRound, tile.begin, tile.end);
  }
  const StateBefore<T> state(seen, tile);
  const bool has_last = tile.is_last && lane < width - 1;
  const T last = has_last ? seen.last(tile, lane) : T();
  Taps taps;
  taps.load(p, place.channel);
  float previous[kVector];
  widen_seen(words_before, state, tile, first - Window::kRound, previous);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int time = first + round * Window::kRound;
    float own[kVector], before[kConvHalo], out[kVector];
    widen_seen(words[round], state, tile, time, own);
    if (tile.has_any(round * Window::kRound, Window::kRound) || tile.zero_before || tile.zero_after) {
      Window::steps_before(own, previous, lane, before);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        out[i] = taps.pre(width, [&](int j) { return i < j ? before[kConvHalo + i - j] : own[i < j ? 0 : i - j]; });
        if (p.silu) out[i] = generic::activated(out[i]);
      }
      store_steps(out_line, tile, time, out);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) previous[i] = own[i];
  }
  if (has_last) Line<T>(p.last_state, tile.sequence, place.channel, 0)[lane] = last;
}

/// Zeroes what a tile zeroes of kVector channels, from a line's on.
template <class T, int kVector>
__device__ __noinline__ void zero_lines(Line<T> line, ConvTile tile, int steps) {
  for (int time = 0; time < steps; ++time) {
    if (tile.zeroes(time)) Elements<T, kVector>{}.store(reinterpret_cast<char*>(&line[time]));
  }
}

/// A thread walks through a tile of kVector channels, kAtOnce steps at a time; the next ones are loaded meanwhile.
template <class T, int kVector, int kWidth>
__global__ void __launch_bounds__(kConvThreads, 6) conv_channel_kernel(const __grid_constant__ ConvTask task) {
  constexpr int kAtOnce = kVector * sizeof(T) < 16 ? 8 : 4;
  const ConvParams& p = task.conv;
  const int64_t vectors = p.dim / kVector, thread = static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x;
  if (thread >= vectors * task.tiles.per_row * p.batch) return;
  const ConvPlace place = ConvPlace::of_thread(p, task.tiles, thread, vectors, kVector);
  const ConvTile& tile = place.tile;
  const int width = width_of<kWidth>(p);
  const Line<T> out_line(p.out, place.batch, place.channel, tile.window);
  if (tile.zero_before || tile.zero_after) zero_lines<T, kVector>(out_line, tile, task.tiles.steps());
  Taps taps[kVector];
  float before[kConvHalo][kVector];  // the inputs of the steps before, oldest first
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    const SeenLine<T> seen(p, place.batch, place.channel + c, tile);
    if (tile.is_last) {
      const Line<T> last(p.last_state, tile.sequence, place.channel + c, 0);
      for (int i = 0; i < width - 1; ++i) last[i] = seen.last(tile, i);
    }
    taps[c].load(p, place.channel + c);
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) {
      before[i][c] = tile.begin < tile.end ? widen(seen.at(tile, tile.begin - kConvHalo + i)) : 0;
    }
  }
  const Line<const T> x_line(p.x, place.batch, place.channel, tile.window);
  const char* from = reinterpret_cast<const char*>(&x_line[tile.begin]);
  char* to = reinterpret_cast<char*>(&out_line[tile.begin]);
  const int64_t from_step = x_line.stride * sizeof(T), to_step = out_line.stride * sizeof(T);
  struct Group {
    Elements<T, kVector> x[kAtOnce];
  };
  const auto load = [&](Group& group, int count) {
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s, from += from_step) {
      if (s < count) group.x[s].load(from);
    }
  };
  Group group;
  int left = tile.end - tile.begin;
  load(group, left);
  for (; left > 0; left -= kAtOnce) {
    Group next;
    load(next, left - kAtOnce);
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s, to += to_step) {
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
      if (s < left) elements.store(to);
    }
    group = next;
  }
}

template <class T>
Error conv_forward_with(const ConvParams& params, ConvAccess access, CUstream_st* stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kChannels = conv_channels(false, sizeof(T));
  const ConvTask task{params, conv_tiles(params, access, false)};
  const int64_t blocks = conv_blocks(params, task.tiles, access, false);
  return with_width(params, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const auto launch_kernel = [&](auto kernel) { return launch(kernel, blocks, kConvThreads, 0, stream, task); };
    switch (access) {
      case ConvAccess::kTimeVectors:
        return launch_kernel(conv_time_kernel<T, kVector, conv_rounds(ConvAccess::kTimeVectors, false), kWidth>);
      case ConvAccess::kTimeElements:
        return launch_kernel(conv_time_kernel<T, 1, conv_rounds(ConvAccess::kTimeElements, false), kWidth>);
      case ConvAccess::kChannelVectors:
        return launch_kernel(conv_channel_kernel<T, kChannels, kWidth>);
      default:
        return launch_kernel(conv_channel_kernel<T, 1, kWidth>);
    }
  });
}

}  // namespace mamba::kernels::cuda
