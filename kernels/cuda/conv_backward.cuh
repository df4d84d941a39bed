// The convolution's adjoint in one pass over x and dout: dpre is worked out where it is needed, also by neighbours, and
// never stored. Gradients of weight and bias leave as a sum for each tile, to be added in order.
#pragma once

#include "cuda/conv_forward.cuh"
#include "cuda/conv_gradient.cuh"

namespace mamba::kernels::cuda {

/// A warp takes a tile of one channel, as in the forward.
template <class T, int kVector, int kWidth>
__global__ void __launch_bounds__(kConvThreads, 5)
    conv_time_backward_kernel(const __grid_constant__ ConvGradTask task) {
  using Window = LaneWindow<kVector>;
  const ConvGradParams& g = task.grad;
  const ConvParams& p = g.conv;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, width = width_of<kWidth>(p);
  const ConvPlace place = ConvPlace::of_warp(p, task.tiles, lane);
  const ConvTile& tile = place.tile;
  if (place.channel >= p.dim) return;
  const GradLine<T> line(g, place.batch, place.channel, tile);
  const Line<T> dx_line(g.dx, place.batch, place.channel, tile.window);

  // The last round first. Two rounds are under way while one is worked on; x's go on to the one before the tile's.
  // What reaches out before the start is dinitial_state.
  const Line<T> dinitial_line(g.dinitial_state, tile.sequence, place.channel, 0);
  const bool zeroes = dx_line.first && (tile.zero_before || tile.zero_after);
  const bool has_dinitial = dinitial_line.first && tile.is_first;
  const typename Window::Rounds rounds(tile, task.tiles, has_dinitial ? tile.start - kConvHalo : tile.begin, zeroes);
  const int first = lane * kVector;
  const auto load_x = [&](int round) {
    const bool is_needed = round >= 0 || (round == -1 && lane >= kWarpSize - Window::kNeighbours);
    const int least = round < 0 ? tile.start : tile.begin;
    return load_steps<T, kVector>(line.seen.x, tile, first + round * Window::kRound, least,
                                  is_needed ? tile.end : least);
  };
  const auto load_dout = [&](int round) {
    return load_steps<T, kVector>(line.dout, tile, first + round * Window::kRound, tile.begin, tile.end);
  };
  Elements<T, kVector> x_words = load_x(rounds.after - 1), x_before = load_x(rounds.after - 2);
  Elements<T, kVector> dout_words = load_dout(rounds.after - 1), dout_before = load_dout(rounds.after - 2);
  Taps taps;
  taps.load(p, place.channel);
  const StateBefore<T> state(line.seen, tile);
  float next[Window::kOwn] = {};  // dpre of the first lanes in the round behind
  if (tile.stop > task.tiles.steps()) {
    const float behind = lane < kConvHalo ? dpre_behind(g, line, tile, place.channel, task.tiles.steps() + lane) : 0;
#pragma unroll
    for (int i = 0; i < Window::kOwn; ++i) next[i] = kVector == 1 ? behind : __shfl_sync(kWholeWarp, behind, i);
  }
  TapSums sums;
#pragma unroll 1
  for (int round = rounds.after - 1; round >= rounds.first; --round) {
    const Elements<T, kVector> x_next = load_x(round - 2), dout_next = load_dout(round - 2);
    const int time = first + round * Window::kRound;
    const bool is_whole = tile.has_all(time, kVector);
    float x[kConvHalo + kVector], dpre[kVector + kConvHalo], own[kVector], previous[kVector];
    widen_seen(x_words, state, tile, time, own);
    widen_seen(x_before, state, tile, time - Window::kRound, previous);
    Window::steps_before(own, previous, lane, x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[kConvHalo + i] = own[i];
    dout_words.widen_into(own);
    if (p.silu) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        own[i] *= generic::activated_slope(taps.pre(width, [&](int j) { return x[kConvHalo + i - j]; }));
      }
    }
    if (!is_whole) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) own[i] = tile.has(time + i) ? own[i] : 0;
    }
    Window::steps_after(own, next, lane, dpre + kVector);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      dpre[i] = own[i];
      if (i < Window::kOwn) next[i] = own[i];
    }
    if (is_whole) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums.add_step(width, dpre[i], x + kConvHalo + i);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (tile.has(time + i)) sums.add_step(width, dpre[i], x + kConvHalo + i);
      }
    }
    if (dx_line.first || has_dinitial) {
      float dx[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        dx[i] = 0;
#pragma unroll
        for (int j = kConvTaps - 1; j >= 0; --j) {
          if (j < width) dx[i] = generic::tap(dx[i], taps.weight[j], dpre[i + j]);
        }
      }
      if (line.dlast_state.first && time + kVector > tile.stop - kConvHalo) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) dx[i] += line.dlast(tile, time + i);
      }
      if (dx_line.first && round >= 0) store_steps(dx_line, tile, time, dx);
      if (has_dinitial && time < tile.start) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const int at = time + i - tile.start + width - 1;
          if (at >= 0 && at < width - 1) narrow_into(dx[i], &dinitial_line[at]);
        }
      }
    }
    x_words = x_before, x_before = x_next;
    dout_words = dout_before, dout_before = dout_next;
  }
  sums.reduce_over_warp();
  if (lane == 0) sums.store(task, place.row_and_tile, place.channel);
}

/// A thread walks through a tile of kVector channels, and on over the steps whose dpre the last of it need.
template <class T, int kVector, int kWidth>
__global__ void __launch_bounds__(kConvThreads, 4)
    conv_channel_backward_kernel(const __grid_constant__ ConvGradTask task) {
  constexpr int kHalo = kConvHalo, kAtOnce = 8 / kVector;
  const ConvGradParams& g = task.grad;
  const ConvParams& p = g.conv;
  const int64_t vectors = p.dim / kVector, thread = static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x;
  if (thread >= vectors * task.tiles.per_row * p.batch) return;
  const ConvPlace place = ConvPlace::of_thread(p, task.tiles, thread, vectors, kVector);
  const ConvTile& tile = place.tile;
  const int width = width_of<kWidth>(p);
  const Line<T> dx_line(g.dx, place.batch, place.channel, tile.window);
  if (dx_line.first && (tile.zero_before || tile.zero_after)) {
    zero_lines<T, kVector>(dx_line, tile, task.tiles.steps());
  }
  Taps taps[kVector];
  TapSums sums[kVector];
  float x[kVector][kHalo + 1], dpre[kVector][kHalo + 1];  // of this step and those before it, this one last
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    const GradLine<T> line(g, place.batch, place.channel + c, tile);
    taps[c].load(p, place.channel + c);
    if (tile.is_first) store_dinitial_state(g, line, tile, place.channel + c, 0, width - 1);
#pragma unroll
    for (int i = 0; i <= kHalo; ++i) {
      const bool is_needed = i > 0 && tile.begin < tile.end;
      x[c][i] = is_needed ? widen(line.seen.at(tile, tile.begin - kHalo + i - 1)) : 0;
      dpre[c][i] = 0;
    }
  }
  const int own = tile.end - tile.begin, to_stop = tile.stop - tile.begin, past = own > 0 ? own + kHalo : 0;
  const Line<const T> x_line(p.x, place.batch, place.channel, tile.window);
  const Line<const T> dout_line(g.dout, place.batch, place.channel, tile.window);
  const char* x_from = reinterpret_cast<const char*>(&x_line[tile.begin]);
  const char* dout_from = reinterpret_cast<const char*>(&dout_line[tile.begin]);
  char* dx_to = dx_line.first ? reinterpret_cast<char*>(&dx_line[tile.begin - kHalo]) : nullptr;
  const int64_t x_step = x_line.stride * sizeof(T), dout_step = dout_line.stride * sizeof(T),
                dx_step = dx_line.stride * sizeof(T);
  struct Group {
    Elements<T, kVector> x[kAtOnce], dout[kAtOnce];
  };
  const auto load = [&](Group& group, int step) {
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s, x_from += x_step, dout_from += dout_step) {
      if (step + s < past && step + s < to_stop) {
        group.x[s].load(x_from);
        group.dout[s].load(dout_from);
      }
    }
  };
  // Steps that all are the tile's own, and whose inputs of kHalo steps ago are, need no questions.
  const auto use = [&](const Group& group, int step, auto plain) {
    constexpr bool kIsPlain = decltype(plain)::value;
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s, dx_to += dx_step) {
      const int at = step + s;
      const bool exists = kIsPlain || at < to_stop, is_own = kIsPlain || at < own;
      float now[kVector], dout[kVector], dx[kVector];
      group.x[s].widen_into(now);
      group.dout[s].widen_into(dout);
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
          x[c][i] = x[c][i + 1];
          dpre[c][i] = dpre[c][i + 1];
        }
        x[c][kHalo] = exists ? now[c] : 0;
        float last = dout[c];
        if (p.silu) last *= generic::activated_slope(taps[c].pre(width, [&](int j) { return x[c][kHalo - j]; }));
        last = dpre[c][kHalo] = exists ? last : 0;
        if (is_own) sums[c].add_step(width, last, x[c] + kHalo);
        // The input of kHalo steps ago has reached out by now.
        dx[c] = 0;
#pragma unroll
        for (int j = kConvTaps - 1; j >= 0; --j) {
          if (j < width) dx[c] = generic::tap(dx[c], taps[c].weight[j], dpre[c][j]);
        }
        if (!kIsPlain) {
          dx[c] += GradLine<T>(g, place.batch, place.channel + c, tile).dlast(tile, tile.begin + at - kHalo);
        }
      }
      if (dx_to && (kIsPlain || (at >= kHalo && at < past))) {
        Elements<T, kVector> elements;
        elements.narrow_from(dx);
        elements.store(dx_to);
      }
    }
  };
  Group group;
  load(group, 0);
  for (int step = 0; step < past; step += kAtOnce) {
    Group next;
    load(next, step + kAtOnce);
    if (step >= kHalo && step + kAtOnce <= own && step + kAtOnce <= to_stop) {
      use(group, step, std::true_type());
    } else {
      use(group, step, std::false_type());
    }
    group = next;
  }
#pragma unroll
  for (int c = 0; c < kVector; ++c) sums[c].store(task, place.row_and_tile, place.channel + c);
}

template <class T>
Error conv_backward_with(const ConvGradParams& params, ConvAccess access, float* sums, CUstream_st* stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kChannels = conv_channels(true, sizeof(T));
  const ConvGradTask task{params, conv_tiles(params.conv, access, true),
                          params.dweight || params.dbias ? sums : nullptr};
  const int64_t blocks = conv_blocks(params.conv, task.tiles, access, true);
  return with_width(params.conv, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const auto launch_kernel = [&](auto kernel) { return launch(kernel, blocks, kConvThreads, 0, stream, task); };
    switch (access) {
      case ConvAccess::kTimeVectors:
        return launch_kernel(conv_time_backward_kernel<T, kVector, kWidth>);
      case ConvAccess::kTimeElements:
        return launch_kernel(conv_time_backward_kernel<T, 1, kWidth>);
      case ConvAccess::kChannelVectors:
        return launch_kernel(conv_channel_backward_kernel<T, kChannels, kWidth>);
      default:
        return launch_kernel(conv_channel_backward_kernel<T, 1, kWidth>);
    }
  });
}

}  // namespace mamba::kernels::cuda
