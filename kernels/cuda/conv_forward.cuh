// The convolution: along time, where a lane takes some steps at once, or along channels, where it walks through time.
#pragma once

#include "cuda/conv.cuh"

namespace mamba::kernels::cuda {

/// A block's place in a grid of (channel blocks, tiles of all rows).
struct ConvPlace {
  int64_t batch, tile;
};
__device__ __forceinline__ ConvPlace conv_place(const ConvTiles& tiles, int64_t index) {
  return {index / tiles.per_row, index % tiles.per_row};
}

/// The kVector steps from `time` on and those just before, of one channel: window[i] is the input at
/// time - kConvHalo + i.
template <class T, int kVector>
__device__ __forceinline__ void load_window(const ConvParams& p, const ConvTile& tile, int64_t channel, int64_t time,
                                            bool is_inside, float (&window)[kConvHalo + kVector]) {
  if (is_inside) {
    const T* from = static_cast<const T*>(p.x.data) + tile.batch * p.x.batch_stride + channel * p.x.dim_stride + time;
    Elements<T, kVector> own, before{};
    own.load(reinterpret_cast<const char*>(from));
    if constexpr (kVector > 1) {
      if (p.width > 1) before.load(reinterpret_cast<const char*>(from - kVector));
      float x[kVector];
      before.widen_into(x);
#pragma unroll
      for (int i = 0; i < kConvHalo; ++i) window[i] = x[kVector - kConvHalo + i];
      own.widen_into(x);
#pragma unroll
      for (int i = 0; i < kVector; ++i) window[kConvHalo + i] = x[i];
    } else {
#pragma unroll
      for (int i = 0; i <= kConvHalo; ++i) {
        window[i] = i + p.width > kConvHalo ? widen(from[(i - kConvHalo) * p.x.length_stride]) : 0;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kConvHalo + kVector; ++i) {
      window[i] = i + p.width > kConvHalo ? seen_at<T>(p, tile, channel, time - kConvHalo + i) : 0;
    }
  }
}

/// A warp takes a tile of one channel; kVectors times each lane takes kVector steps.
template <class T, int kVector, int kVectors>
__global__ void __launch_bounds__(kConvThreads) conv_time_kernel(const __grid_constant__ ConvTask task) {
  const ConvParams& p = task.conv;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t channel_blocks = ceil_div(p.dim, kConvThreads / kWarpSize);
  const ConvPlace place = conv_place(task.tiles, blockIdx.x / channel_blocks);
  const int64_t channel = blockIdx.x % channel_blocks * (kConvThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (channel >= p.dim) return;
  const ConvTile tile = conv_tile(p, task.tiles, place.batch, place.tile);
  if (tile.is_first && lane < p.width - 1) store_last_state<T>(p, tile, channel, lane);
  const int width = static_cast<int>(p.width);
  Taps taps;
  taps.load(p, channel);
  const int64_t first = tile.begin / task.tiles.steps * task.tiles.steps;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t time = first + (v * kWarpSize + lane) * kVector;
    if (time + kVector <= tile.begin || time >= tile.end) continue;
    const bool is_inside = time - (width - 1) >= tile.start && time >= tile.begin && time + kVector <= tile.end;
    float window[kConvHalo + kVector], out[kVector];
    load_window<T, kVector>(p, tile, channel, time, is_inside, window);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      out[i] = taps.pre(width, [&](int j) { return window[kConvHalo + i - j]; });
      if (p.silu) out[i] = generic::activated(out[i]);
    }
    T* to = static_cast<T*>(p.out.data) + place.batch * p.out.batch_stride + channel * p.out.dim_stride +
            time * p.out.length_stride;
    if (is_inside) {
      Elements<T, kVector> elements;
      elements.narrow_from(out);
      elements.store(reinterpret_cast<char*>(to));
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (time + i >= tile.begin && time + i < tile.end) narrow_into(out[i], to + i * p.out.length_stride);
      }
    }
  }
}

/// A thread walks through a tile of kVector channels, four steps at a time.
template <class T, int kVector>
__global__ void __launch_bounds__(kConvThreads) conv_channel_kernel(const __grid_constant__ ConvTask task) {
  constexpr int kAtOnce = 4;
  const ConvParams& p = task.conv;
  const int64_t vectors = p.dim / kVector;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kConvThreads + threadIdx.x;
  if (thread >= vectors * task.tiles.per_row * p.batch) return;
  const ConvPlace place = conv_place(task.tiles, thread / vectors);
  const int64_t channel = thread % vectors * kVector;
  const ConvTile tile = conv_tile(p, task.tiles, place.batch, place.tile);
  const int width = static_cast<int>(p.width);
  Taps taps[kVector];
  float before[kConvHalo][kVector];  // the inputs of the steps before, oldest first
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    if (tile.is_first) {
      for (int i = 0; i < width - 1; ++i) store_last_state<T>(p, tile, channel + c, i);
    }
    taps[c].load(p, channel + c);
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) {
      const bool is_needed = i + width > kConvHalo && tile.begin < tile.end;
      before[i][c] = is_needed ? seen_at<T>(p, tile, channel + c, tile.begin - kConvHalo + i) : 0;
    }
  }
  const char* from = reinterpret_cast<const char*>(static_cast<const T*>(p.x.data) + place.batch * p.x.batch_stride +
                                                   channel + tile.begin * p.x.length_stride);
  char* to = reinterpret_cast<char*>(static_cast<T*>(p.out.data) + place.batch * p.out.batch_stride + channel +
                                     tile.begin * p.out.length_stride);
  const int64_t from_step = p.x.length_stride * sizeof(T), to_step = p.out.length_stride * sizeof(T);
  for (int left = static_cast<int>(tile.end - tile.begin); left > 0; left -= kAtOnce) {
    Elements<T, kVector> x[kAtOnce];
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s, from += from_step) {
      if (s < left) x[s].load(from);
    }
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s, to += to_step) {
      float now[kVector], out[kVector];
      x[s].widen_into(now);
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
  }
}

template <class T>
Error conv_forward_with(const ConvParams& params, ConvAccess access, CUstream_st* stream) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  ConvTask task{params, {}};
  if (is_along_time(access)) {
    task.tiles = conv_tiles(params, conv_time_steps(access, kVector));
    const int64_t blocks = params.batch * task.tiles.per_row * ceil_div(params.dim, kConvThreads / kWarpSize);
    return access == ConvAccess::kTimeVectors
               ? launch(conv_time_kernel<T, kVector, kConvVectors>, blocks, kConvThreads, 0, stream, task)
               : launch(conv_time_kernel<T, 1, kConvElements>, blocks, kConvThreads, 0, stream, task);
  }
  const int64_t channels = access == ConvAccess::kChannelVectors ? kVector : 1;
  task.tiles = conv_tiles(params, conv_channel_steps(params, channels));
  const int64_t threads = params.batch * task.tiles.per_row * (params.dim / channels);
  return access == ConvAccess::kChannelVectors
             ? launch(conv_channel_kernel<T, kVector>, ceil_div(threads, kConvThreads), kConvThreads, 0, stream, task)
             : launch(conv_channel_kernel<T, 1>, ceil_div(threads, kConvThreads), kConvThreads, 0, stream, task);
}

}  // namespace mamba::kernels::cuda
