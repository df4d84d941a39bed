// How the CUDA kernels of the convolution cut up a problem.
#pragma once

#include <initializer_list>

#include "mamba/kernels/config.h"
#include "mamba/kernels/conv.h"

namespace mamba::kernels::cuda {

constexpr int kConvTaps = 4;  // the most that the fast kernels take
constexpr int kConvThreads = 128, kConvUpdateThreads = 64;

/// What a thread moves with one instruction: elements along time or along channels, or single ones.
enum class ConvAccess { kGeneric, kTimeVectors, kTimeElements, kChannelVectors, kChannelElements };

inline bool is_along_time(ConvAccess access) {
  return access == ConvAccess::kTimeVectors || access == ConvAccess::kTimeElements;
}

/// Tiles of `steps` points of time. Within a packed row they begin at multiples of it, or where a sequence begins, and
/// each belongs to one sequence; see ConvTile.
struct ConvTiles {
  int64_t steps = 1, per_row = 1;
};

struct ConvTask {
  ConvParams conv;
  ConvTiles tiles;
};

struct ConvGradTask {
  ConvGradParams grad;
  ConvTiles tiles;
  float* sums = nullptr;  // (batch x tiles, dim, width + 1): of dweight and dbias; null where neither is asked for
};

/// A tile: some steps of one sequence.
struct ConvTile {
  int64_t sequence = 0, batch = 0;
  int64_t start = 0, stop = 0;  // of the sequence
  int64_t begin = 0, end = 0;   // of the tile; none for a tile that no sequence has
  bool is_first = false;        // of its sequence, which it stands for also when that is empty
};

/// Tile `index` of a batch row. The tiles of packed sequence i are numbered from start / steps + i on, which keeps
/// those of different sequences apart. Bad bounds, which are not read back, stay within the row.
MAMBA_HD inline ConvTile conv_tile(const ConvParams& p, const ConvTiles& tiles, int64_t batch, int64_t index) {
  const auto clamp = [](int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; };
  ConvTile tile;
  tile.batch = batch;
  tile.sequence = batch;
  tile.stop = p.length;
  int64_t position = index;
  if (p.cu_seqlens) {
    int64_t low = 0, high = p.sequences;  // the last sequence that does not begin after the tile
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (clamp(p.cu_seqlens[middle], 0, p.length) / tiles.steps + middle <= index) {
        low = middle;
      } else {
        high = middle;
      }
    }
    tile.sequence = low;
    tile.start = clamp(p.cu_seqlens[low], 0, p.length);
    tile.stop = clamp(p.cu_seqlens[low + 1], tile.start, p.length);
    position = index - low;
  }
  tile.is_first = position == tile.start / tiles.steps;
  tile.begin = clamp(position * tiles.steps, tile.start, tile.stop);
  tile.end = clamp((position + 1) * tiles.steps, tile.begin, tile.stop);
  return tile;
}

inline ConvTiles conv_tiles(const ConvParams& p, int64_t steps) {
  const int64_t tiles = ceil_div(p.length, steps);
  return {steps, p.cu_seqlens ? tiles + p.sequences : tiles > 1 ? tiles : 1};
}

/// Elements of 16 bytes.
inline int64_t conv_vector(ScalarType type) {
  return type == ScalarType::kFloat32 ? 4 : 8;
}

/// The access that all of the activations allow, `vector` elements at a time.
inline ConvAccess conv_access(const ConvParams& p, std::initializer_list<const Activation*> activations,
                              int64_t vector) {
  if (p.activation_type == ScalarType::kFloat64 || p.width > kConvTaps || p.sequences == 0 || p.dim == 0) {
    return ConvAccess::kGeneric;
  }
  const int64_t bytes = vector * (p.activation_type == ScalarType::kFloat32 ? 4 : 2);
  bool time = true, channels = true, time_vectors = true, channel_vectors = p.dim % vector == 0;
  for (const Activation* x : activations) {
    if (!x->data) continue;
    const bool is_aligned =
        reinterpret_cast<uintptr_t>(x->data) % static_cast<uintptr_t>(bytes) == 0 && x->batch_stride % vector == 0;
    time = time && (x->length_stride == 1 || p.length == 1);
    channels = channels && (x->dim_stride == 1 || p.dim == 1);
    time_vectors = time_vectors && is_aligned && x->length_stride == 1 && x->dim_stride % vector == 0;
    channel_vectors =
        channel_vectors && is_aligned && x->dim_stride == 1 && (x->length_stride % vector == 0 || p.length == 1);
  }
  if (channels && (!time || p.length == 1)) {
    return channel_vectors ? ConvAccess::kChannelVectors : ConvAccess::kChannelElements;
  }
  if (time) return time_vectors ? ConvAccess::kTimeVectors : ConvAccess::kTimeElements;
  return ConvAccess::kGeneric;
}

/// Steps that a warp along time takes: `vectors` of them for each lane.
constexpr int kConvVectors = 4, kConvElements = 16;
inline int64_t conv_time_steps(ConvAccess access, int64_t vector) {
  return 32 * (access == ConvAccess::kTimeVectors ? kConvVectors * vector : kConvElements);
}

/// Channels that a thread of the backward takes where they come by vectors.
constexpr int kConvBackwardChannels = 4;

/// Steps that a thread along channels walks: fewer where there would be too few threads.
inline int64_t conv_channel_steps(const ConvParams& p, int64_t channels_per_thread) {
  constexpr int64_t kMost = 128, kLeast = 16, kEnoughThreads = 132 * 512;
  int64_t steps = kMost;
  const int64_t walks = p.batch * ceil_div(p.dim, channels_per_thread);
  while (steps > kLeast && walks * ceil_div(p.length, steps) < kEnoughThreads) steps /= 2;
  return steps;
}

inline ConvTiles conv_backward_tiles(const ConvParams& p, ConvAccess access) {
  if (is_along_time(access)) return conv_tiles(p, conv_time_steps(access, conv_vector(p.activation_type)));
  return conv_tiles(p, conv_channel_steps(p, access == ConvAccess::kChannelVectors ? kConvBackwardChannels : 1));
}

inline ConvAccess conv_forward_access(const ConvParams& p) {
  return conv_access(p, {&p.x, &p.out}, conv_vector(p.activation_type));
}

/// Along channels the backward moves vectors of its own size, so what suits the wider ones suits it too.
inline ConvAccess conv_backward_access(const ConvGradParams& g) {
  if (!g.dout.data) return ConvAccess::kGeneric;
  const auto access = [&](int64_t vector) { return conv_access(g.conv, {&g.conv.x, &g.dout, &g.dx}, vector); };
  const ConvAccess narrow = access(kConvBackwardChannels);
  return is_along_time(narrow) ? access(conv_vector(g.conv.activation_type)) : narrow;
}

/// Whether the fast step takes the problem: four taps, and states that follow each other.
inline bool is_fast(const ConvUpdateParams& p) {
  if (p.activation_type == ScalarType::kFloat64 || p.width != kConvTaps || p.dim == 0) return false;
  const int64_t vector = conv_vector(p.activation_type);
  const auto is_vector = [&](const Activation& x, int64_t dim_stride) {
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.batch_stride % vector == 0 && x.dim_stride == dim_stride;
  };
  return p.dim % vector == 0 && is_vector(p.x, 1) && is_vector(p.out, 1) && is_vector(p.state, p.width - 1) &&
         p.state.length_stride == 1 && reinterpret_cast<uintptr_t>(p.weight) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.bias) % 16 == 0;
}

}  // namespace mamba::kernels::cuda
