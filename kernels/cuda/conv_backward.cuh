// The convolution's adjoint in one pass over x and dout: dpre is worked out where it is needed, also by neighbours, and
// never stored. Gradients of weight and bias leave as a sum for each tile, to be added in order.
#pragma once

#include "cuda/conv_forward.cuh"
#include "cuda/conv_time_backward.cuh"

namespace mamba::kernels::cuda {

/// Whether a tile has rare results: dinitial_state, or dx where last_state reaches out.
__device__ __forceinline__ bool has_rare_results(const ConvGradParams& g, const ConvTile& tile, int width) {
  return (g.dinitial_state.data && tile.is_first) ||
         (g.dx.data && g.dlast_state.data && tile.begin < tile.end && tile.stop - tile.end < width - 1);
}
/// Those of a thread's kVector channels. Where it works is found out again, and holds no registers before.
template <class T, int kVector>
__device__ __noinline__ void store_rare_results(const ConvGradTask& task, int64_t thread, int width) {
  const ConvGradParams& g = task.grad;
  const ConvPlace place = ConvPlace::of_thread(g.conv, task.tiles, thread, g.conv.dim / kVector, kVector);
  const ConvTile& tile = place.tile;
  for (int c = 0; c < kVector; ++c) {
    const int64_t channel = place.channel + c;
    const GradLine<T> line(g, place.batch, channel, tile);
    if (tile.is_first) store_dinitial_state(g, line, tile, channel, 0, width - 1);
    if (!g.dx.data || !g.dlast_state.data) continue;
    const Line<T> dx_line(g.dx, place.batch, channel, tile.window);
    for (int time = max(tile.begin, tile.stop - (width - 1)); time < tile.end; ++time) {
      store_exact_dx(g, line, tile, channel, time, &dx_line[time]);
    }
  }
}

/// A thread walks through a tile of kVector channels, and on over the steps whose dpre the last of it need.
template <class T, int kVector, int kWidth>
__global__ void __launch_bounds__(kConvThreads, conv_channel_blocks(true, sizeof(T)))
    conv_channel_backward_kernel(const __grid_constant__ ConvGradTask task) {
  constexpr int kHalo = kConvHalo, kAtOnce = 4;
  const ConvGradParams& g = task.grad;
  const ConvParams& p = g.conv;
  const int64_t vectors = p.dim / kVector, thread = static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x;
  if (thread >= vectors * task.tiles.per_row * p.batch) return;
  const ConvPlace place = ConvPlace::of_thread(p, task.tiles, thread, vectors, kVector);
  const ConvTile& tile = place.tile;
  const int width = width_of<kWidth>(p);
  const int own = tile.end - tile.begin, to_stop = tile.stop - tile.begin, past = own > 0 ? own + kHalo : 0;
  const int filled = min(past, to_stop);  // steps that exist
  const Line<const T> x_line(p.x, place.batch, place.channel, tile.window);
  const Line<const T> dout_line(g.dout, place.batch, place.channel, tile.window);
  const Line<T> dx_line(g.dx, place.batch, place.channel, tile.window);
  const bool has_dx = dx_line.first, is_rare = has_rare_results(g, tile, width);
  if (has_dx && (tile.zero_before || tile.zero_after)) zero_lines<T, kVector>(dx_line, tile, task.tiles.steps);
  const char* x_from = reinterpret_cast<const char*>(&x_line[tile.begin]);
  const char* dout_from = reinterpret_cast<const char*>(&dout_line[tile.begin]);
  char* dx_to = reinterpret_cast<char*>(&dx_line[tile.begin - kHalo]);
  const int x_step = byte_step(x_line), dout_step = byte_step(dout_line), dx_step = byte_step(dx_line);
  struct Group {
    Elements<T, kVector> x[kAtOnce], dout[kAtOnce];
  };
  const auto load = [&](Group& group, int step) {
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      if (step + s >= filled) continue;
      group.x[s].load(x_from + int64_t{s} * x_step);
      group.dout[s].load(dout_from + int64_t{s} * dout_step);
    }
    x_from += int64_t{kAtOnce} * x_step;
    dout_from += int64_t{kAtOnce} * dout_step;
  };
  Group group;
  load(group, 0);
  Taps taps[kVector];
  TapSums sums[kVector];
  float before[kHalo][kVector];
  load_before(p, place, width, x_line, before);
  float x[kVector][kHalo + 1], dpre[kVector][kHalo + 1] = {};  // of this step and those before it, this one last
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    taps[c].load(p, width, place.channel + c);
#pragma unroll
    for (int i = 0; i < kHalo; ++i) x[c][i + 1] = before[i][c];
  }
  // Steps that all are the tile's own, and whose inputs of kHalo steps ago are, need no questions.
  const auto use = [&](int step, auto silu, auto plain) {
    constexpr bool kIsPlain = decltype(plain)::value;
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      const int at = step + s;
      const bool exists = kIsPlain || at < filled, is_own = kIsPlain || at < own;
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
        x[c][kHalo] = now[c];
        float last = dout[c];
        if (decltype(silu)::value)
          last *= generic::activated_slope(taps[c].pre(width, [&](int j) { return x[c][kHalo - j]; }));
        dpre[c][kHalo] = exists ? last : 0;
        if (is_own) sums[c].add_step(width, last, x[c] + kHalo);
        // The input of kHalo steps ago has reached out by now.
        dx[c] = 0;
#pragma unroll
        for (int j = kConvTaps - 1; j >= 0; --j) {
          if (j < width) dx[c] = generic::tap(dx[c], taps[c].weight[j], dpre[c][j]);
        }
      }
      if (has_dx && (kIsPlain || (at >= kHalo && at < past))) {
        Elements<T, kVector> elements;
        elements.narrow_from(dx);
        elements.store(dx_to + int64_t{s} * dx_step);
      }
    }
    dx_to += int64_t{kAtOnce} * dx_step;
  };
  with_silu(p, [&](auto silu) {
    for (int step = 0; step < past; step += kAtOnce) {
      Group next;
      load(next, step + kAtOnce);
      if (step >= kHalo && step + kAtOnce <= own) {
        use(step, silu, std::true_type());
      } else {
        use(step, silu, std::false_type());
      }
      group = next;
    }
  });
#pragma unroll
  for (int c = 0; c < kVector; ++c) sums[c].store(task, place.row_and_tile, place.channel + c);
  if (is_rare) store_rare_results<T, kVector>(task, thread, width);
}

template <class T>
Error conv_backward_with(const ConvGradParams& params, ConvAccess access, float* sums, CUstream_st* stream) {
  constexpr int kChannels = conv_channels(true);
  const ConvGradTask task{params, conv_tiles(params.conv, access, true),
                          params.dweight || params.dbias ? sums : nullptr};
  const dim3 grid = conv_grid(params.conv, task.tiles, access, true);
  return with_width(params.conv, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    switch (access) {
      case ConvAccess::kTimeVectors:
        if (kWidth > 0 && !params.conv.cu_seqlens) {
          return conv_launch(conv_time_backward_kernel<T, kConvTaps, true, true>, grid, stream, task);
        }
        return conv_launch(conv_time_backward_kernel<T, kWidth, false, true>, grid, stream, task);
      case ConvAccess::kTimeElements:
        return conv_launch(conv_time_backward_kernel<T, kWidth, false, false>, grid, stream, task);
      case ConvAccess::kChannelVectors:
        return conv_launch(conv_channel_backward_kernel<T, kChannels, kWidth>, grid, stream, task);
      default:
        return conv_launch(conv_channel_backward_kernel<T, 1, kWidth>, grid, stream, task);
    }
  });
}

}  // namespace mamba::kernels::cuda
