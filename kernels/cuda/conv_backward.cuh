// The convolution's adjoint in one pass over x and dout: dpre is worked out where it is needed, also by neighbours, and
// never stored. Gradients of weight and bias leave as a sum for each tile, to be added in order.
#pragma once

#include "cuda/conv_forward.cuh"

namespace mamba::kernels::cuda {

/// What a channel's tile adds to dweight, the last tap first, and to dbias.
struct TapSums {
  float weight[kConvTaps] = {}, bias = 0;

  __device__ __forceinline__ void add(const TapSums& other) {
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) weight[j] += other.weight[j];
    bias += other.bias;
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
    const int64_t width = task.grad.conv.width;
    float* to = task.sums + (row_and_tile * task.grad.conv.dim + channel) * (width + 1);
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) {
      if (j < width) to[width - 1 - j] = weight[j];
    }
    to[width] = bias;
  }
};

/// dpre of one step of a channel; 0 outside the sequence.
template <class T>
__device__ float dpre_at(const ConvGradParams& g, const ConvTile& tile, const Taps& taps, int64_t channel,
                         int64_t time) {
  const ConvParams& p = g.conv;
  if (time < tile.start || time >= tile.stop) return 0;
  const float dout = generic::load<T>(g.dout, tile.batch, channel, time);
  if (!p.silu) return dout;
  const float pre = taps.pre(static_cast<int>(p.width), [&](int j) { return seen_at<T>(p, tile, channel, time - j); });
  return dout * generic::activated_slope(pre);
}

/// The gradient of what a channel has seen at `time`, if that lies in the sequence or the initial state.
template <class T>
__device__ float dseen_at(const ConvGradParams& g, const ConvTile& tile, const Taps& taps, int64_t channel,
                          int64_t time) {
  const int64_t width = g.conv.width;
  float sum = 0;
#pragma unroll
  for (int j = kConvTaps - 1; j >= 0; --j) {
    if (j < width) sum = generic::tap(sum, taps.weight[j], dpre_at<T>(g, tile, taps, channel, time + j));
  }
  const int64_t i = time - (tile.stop - (width - 1));  // in last_state
  if (g.dlast_state.data && i >= 0) sum += generic::load<T>(g.dlast_state, tile.sequence, channel, i);
  return sum;
}

// The rare cases stand apart, and load the taps again, so that the common one keeps all of its values in registers.

/// A channel's dinitial_state.
template <class T>
__device__ __noinline__ void store_dinitial_state(const ConvGradParams& g, ConvTile tile, int64_t channel, int first,
                                                  int after) {
  if (!g.dinitial_state.data) return;
  Taps taps;
  taps.load(g.conv, channel);
  for (int i = first; i < after; ++i) {
    const float value = dseen_at<T>(g, tile, taps, channel, tile.start - (g.conv.width - 1) + i);
    generic::store<T>(g.dinitial_state, tile.sequence, channel, i, value);
  }
}

/// A few steps of a channel at the edge of a sequence or of the row.
template <class T, int kVector>
__device__ __noinline__ TapSums conv_backward_edge(const ConvGradParams& g, ConvTile tile, int64_t channel,
                                                   int64_t time) {
  const ConvParams& p = g.conv;
  Taps taps;
  taps.load(p, channel);
  TapSums sums;
  const int64_t first = time > tile.begin ? time : tile.begin, after = time + kVector;
  for (int64_t t = first; t < (after < tile.end ? after : tile.end); ++t) {
    const float dpre = dpre_at<T>(g, tile, taps, channel, t);
    sums.bias += dpre;
#pragma unroll
    for (int j = 0; j < kConvTaps; ++j) {
      if (j < p.width) sums.weight[j] = fmaf(dpre, seen_at<T>(p, tile, channel, t - j), sums.weight[j]);
    }
    if (g.dx.data) generic::store<T>(g.dx, tile.batch, channel, t, dseen_at<T>(g, tile, taps, channel, t));
  }
  return sums;
}

/// kVector elements, kBefore before and kAfter after them, along time.
template <class T, int kVector, int kBefore, int kAfter>
__device__ __forceinline__ void load_around(const T* at, float (&x)[kBefore + kVector + kAfter]) {
  if constexpr (kVector == 1) {
#pragma unroll
    for (int i = 0; i < kBefore + kVector + kAfter; ++i) x[i] = widen(at[i - kBefore]);
  } else {
    float part[kVector];
#pragma unroll
    for (int v = kBefore > 0 ? -1 : 0; v <= 1; ++v) {
      Elements<T, kVector> elements;
      elements.load(reinterpret_cast<const char*>(at + v * kVector));
      elements.widen_into(part);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int to = kBefore + v * kVector + i;
        if (to >= 0 && to < kBefore + kVector + kAfter) x[to] = part[i];
      }
    }
  }
}

/// A warp takes a tile of one channel, as in the forward.
template <class T, int kVector, int kVectors>
__global__ void __launch_bounds__(kConvThreads) conv_time_backward_kernel(const __grid_constant__ ConvGradTask task) {
  constexpr int kHalo = kConvHalo;
  const ConvGradParams& g = task.grad;
  const ConvParams& p = g.conv;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, width = static_cast<int>(p.width);
  const int64_t channel_blocks = ceil_div(p.dim, kConvThreads / kWarpSize);
  const int64_t row_and_tile = blockIdx.x / channel_blocks;
  const ConvPlace place = conv_place(task.tiles, row_and_tile);
  const int64_t channel = blockIdx.x % channel_blocks * (kConvThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (channel >= p.dim) return;
  const ConvTile tile = conv_tile(p, task.tiles, place.batch, place.tile);
  Taps taps;
  taps.load(p, channel);
  if (tile.is_first && lane < width - 1) store_dinitial_state<T>(g, tile, channel, lane, lane + 1);
  const int64_t first = tile.begin / task.tiles.steps * task.tiles.steps;
  TapSums sums;
  for (int v = 0; v < kVectors; ++v) {
    const int64_t time = first + (v * kWarpSize + lane) * kVector;
    if (time + kVector <= tile.begin || time >= tile.end) continue;
    const int64_t last_read = time + kVector + (kVector > kHalo ? kVector : kHalo);
    const bool is_inside = time - (kVector > kHalo ? kVector : kHalo) >= tile.start && time >= tile.begin &&
                           time + kVector <= tile.end && time + kVector + kHalo <= tile.stop && last_read <= p.length;
    if (!is_inside) {
      sums.add(conv_backward_edge<T, kVector>(g, tile, channel, time));
      continue;
    }
    float x[kHalo + kVector + kHalo], dpre[kVector + kHalo], dx[kVector];
    load_around<T, kVector, kHalo, kHalo>(
        static_cast<const T*>(p.x.data) + place.batch * p.x.batch_stride + channel * p.x.dim_stride + time, x);
    load_around<T, kVector, 0, kHalo>(
        static_cast<const T*>(g.dout.data) + place.batch * g.dout.batch_stride + channel * g.dout.dim_stride + time,
        dpre);
    if (p.silu) {
#pragma unroll
      for (int i = 0; i < kVector + kHalo; ++i) {
        dpre[i] *= generic::activated_slope(taps.pre(width, [&](int j) { return x[kHalo + i - j]; }));
      }
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      dx[i] = 0;
      sums.bias += dpre[i];
#pragma unroll
      for (int j = kConvTaps - 1; j >= 0; --j) {
        if (j >= width) continue;
        dx[i] = generic::tap(dx[i], taps.weight[j], dpre[i + j]);
        sums.weight[j] = fmaf(dpre[i], x[kHalo + i - j], sums.weight[j]);
      }
    }
    if (g.dx.data) {
      Elements<T, kVector> elements;
      elements.narrow_from(dx);
      elements.store(reinterpret_cast<char*>(static_cast<T*>(g.dx.data) + place.batch * g.dx.batch_stride +
                                             channel * g.dx.dim_stride + time));
    }
  }
  sums.reduce_over_warp();
  if (lane == 0) sums.store(task, row_and_tile, channel);
}

/// A thread walks through a tile of kVector channels, and on over the steps whose dpre the last of it need.
template <class T, int kVector>
__global__ void __launch_bounds__(kConvThreads)
    conv_channel_backward_kernel(const __grid_constant__ ConvGradTask task) {
  constexpr int kHalo = kConvHalo, kAtOnce = 4;
  const ConvGradParams& g = task.grad;
  const ConvParams& p = g.conv;
  const int64_t vectors = p.dim / kVector;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x;
  if (thread >= vectors * task.tiles.per_row * p.batch) return;
  const int64_t row_and_tile = thread / vectors, channel = thread % vectors * kVector;
  const ConvPlace place = conv_place(task.tiles, row_and_tile);
  const ConvTile tile = conv_tile(p, task.tiles, place.batch, place.tile);
  const int width = static_cast<int>(p.width);
  Taps taps[kVector];
  TapSums sums[kVector];
  float x[kVector][kHalo + 1], dpre[kVector][kHalo + 1];  // of this step and those before it, this one last
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    taps[c].load(p, channel + c);
    if (tile.is_first) store_dinitial_state<T>(g, tile, channel + c, 0, width - 1);
#pragma unroll
    for (int i = 0; i <= kHalo; ++i) {
      const bool is_needed = i + width > kHalo && i > 0 && tile.begin < tile.end;
      x[c][i] = is_needed ? seen_at<T>(p, tile, channel + c, tile.begin - kHalo + i - 1) : 0;
      dpre[c][i] = 0;
    }
  }
  const int64_t begin = tile.begin, past = tile.end + (tile.begin < tile.end ? kHalo : 0);
  const auto line = [&](const Activation& a) {
    return reinterpret_cast<char*>(static_cast<T*>(a.data) + place.batch * a.batch_stride + channel +
                                   begin * a.length_stride);
  };
  const char *x_line = line(p.x), *dout_line = line(g.dout);
  char* dx_line = g.dx.data ? line(g.dx) - kHalo * g.dx.length_stride * static_cast<int64_t>(sizeof(T)) : nullptr;
  const auto bytes = [](const Activation& a) { return a.length_stride * static_cast<int64_t>(sizeof(T)); };
  const int64_t x_step = bytes(p.x), dout_step = bytes(g.dout), dx_step = bytes(g.dx);
  for (int64_t time = begin; time < past; time += kAtOnce) {
    Elements<T, kVector> xs[kAtOnce], douts[kAtOnce];
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s, x_line += x_step, dout_line += dout_step) {
      if (time + s < past && time + s < tile.stop) {
        xs[s].load(x_line);
        douts[s].load(dout_line);
      }
    }
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s, dx_line += dx_step) {
      if (time + s >= past) break;
      const bool exists = time + s < tile.stop, is_own = time + s < tile.end;
      float now[kVector], dout[kVector], dx[kVector];
      xs[s].widen_into(now);
      douts[s].widen_into(dout);
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
        if (is_own) {
          sums[c].bias += last;
#pragma unroll
          for (int j = 0; j < kConvTaps; ++j) {
            if (j < width) sums[c].weight[j] = fmaf(last, x[c][kHalo - j], sums[c].weight[j]);
          }
        }
        // The input of kHalo steps ago has reached out by now.
        dx[c] = 0;
#pragma unroll
        for (int j = kConvTaps - 1; j >= 0; --j) {
          if (j < width) dx[c] = generic::tap(dx[c], taps[c].weight[j], dpre[c][j]);
        }
        const int64_t of_state = time + s - kHalo - (tile.stop - (width - 1));
        if (g.dlast_state.data && of_state >= 0) {
          dx[c] += generic::load<T>(g.dlast_state, tile.sequence, channel + c, of_state);
        }
      }
      if (g.dx.data && time + s - kHalo >= begin) {
        Elements<T, kVector> elements;
        elements.narrow_from(dx);
        elements.store(dx_line);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kVector; ++c) sums[c].store(task, row_and_tile, channel + c);
}

template <class T>
Error conv_backward_with(const ConvGradParams& params, ConvAccess access, float* sums, CUstream_st* stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  const ConvParams& p = params.conv;
  ConvGradTask task{params, conv_backward_tiles(p, access), params.dweight || params.dbias ? sums : nullptr};
  if (is_along_time(access)) {
    const int64_t blocks = p.batch * task.tiles.per_row * ceil_div(p.dim, kConvThreads / kWarpSize);
    return access == ConvAccess::kTimeVectors
               ? launch(conv_time_backward_kernel<T, kVector, kConvVectors>, blocks, kConvThreads, 0, stream, task)
               : launch(conv_time_backward_kernel<T, 1, kConvElements>, blocks, kConvThreads, 0, stream, task);
  }
  const bool by_vector = access == ConvAccess::kChannelVectors;
  const int64_t threads = p.batch * task.tiles.per_row * (p.dim / (by_vector ? kConvBackwardChannels : 1));
  return by_vector ? launch(conv_channel_backward_kernel<T, kConvBackwardChannels>, ceil_div(threads, kConvThreads),
                            kConvThreads, 0, stream, task)
                   : launch(conv_channel_backward_kernel<T, 1>, ceil_div(threads, kConvThreads), kConvThreads, 0,
                            stream, task);
}

}  // namespace mamba::kernels::cuda
