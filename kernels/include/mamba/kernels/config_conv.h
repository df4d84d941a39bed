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

/// Tiles of 2^shift steps. Within a packed row they begin at multiples of it, or where a sequence begins, and each
/// belongs to one sequence; see ConvTile.
struct ConvTiles {
  int shift = 0;
  int64_t per_row = 1;

  MAMBA_HD int steps() const { return 1 << shift; }
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

/// A tile: some steps of one sequence. All steps are counted from the first of its window; what is far is only known to
/// be far. The tiles of the first and of the last sequence together cover what lies outside every sequence too, where
/// results are 0.
struct ConvTile {
  int64_t sequence = 0, window = 0;
  int start = 0, stop = 0;                       // of the sequence
  int begin = 0, end = 0;                        // of the tile; none for a tile that no sequence has
  int length = 0;                                // of the row
  bool is_first = false, is_last = false;        // of its sequence, for which it stands also when that is empty
  bool zero_before = false, zero_after = false;  // steps of the window before start, and from stop on

  MAMBA_HD bool has(int time) const { return time >= begin && time < end; }
  MAMBA_HD bool has_all(int time, int count) const { return time >= begin && time + count <= end; }
  MAMBA_HD bool has_any(int time, int count) const { return time < end && time + count > begin; }
  MAMBA_HD bool zeroes(int time) const {
    return (zero_before && time < start) || (zero_after && time >= stop && time < length);
  }
};

/// Bounds of a packed sequence, which are not read back, stay within the row.
MAMBA_HD inline int64_t conv_bound(const ConvParams& p, int64_t i, int64_t least) {
  const int64_t bound = p.cu_seqlens[i];
  return bound < least ? least : bound > p.length ? p.length : bound;
}

/// Whether a packed row's tiles of the sequence are numbered `index` or less. The tiles of sequence i are numbered from
/// start / steps + i on, which keeps those of different sequences apart.
MAMBA_HD inline bool conv_begins(const ConvParams& p, const ConvTiles& tiles, int64_t sequence, int64_t index) {
  return (conv_bound(p, sequence, 0) >> tiles.shift) + sequence <= index;
}

/// The sequence of tile `index` of a packed row: the last one that does not begin after it.
MAMBA_HD inline int64_t conv_sequence(const ConvParams& p, const ConvTiles& tiles, int64_t index) {
  int64_t low = 0, high = p.sequences;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (conv_begins(p, tiles, middle, index) ? low : high) = middle;
  }
  return low;
}

/// Tile `index` of a row, of the sequence that it belongs to.
MAMBA_HD inline ConvTile conv_tile(const ConvParams& p, const ConvTiles& tiles, int64_t index, int64_t sequence) {
  ConvTile tile;
  tile.sequence = sequence;
  int64_t start = 0, stop = p.length, position = index;
  if (p.cu_seqlens) {
    start = conv_bound(p, sequence, 0);
    stop = conv_bound(p, sequence + 1, start);
    position = index - sequence;
    tile.zero_before = sequence == 0 && start > 0;
    tile.zero_after = sequence == p.sequences - 1 && stop < p.length;
  }
  tile.window = position << tiles.shift;
  tile.is_first = position == start >> tiles.shift;
  tile.is_last = position == (stop > start ? stop - 1 : start) >> tiles.shift;
  const auto from_window = [&](int64_t time) {
    constexpr int64_t kFar = 1 << 29;
    const int64_t away = time - tile.window;
    return static_cast<int>(away < -kFar ? -kFar : away > kFar ? kFar : away);
  };
  tile.start = from_window(start);
  tile.stop = from_window(stop);
  tile.length = from_window(p.length);
  tile.begin = tile.start > 0 ? tile.start : 0;
  tile.end = tile.stop < tiles.steps() ? tile.stop : tiles.steps();
  if (tile.end < tile.begin) tile.end = tile.begin;
  return tile;
}

inline ConvTiles conv_tiles(const ConvParams& p, int shift) {
  const int64_t tiles = ceil_div(p.length, int64_t{1} << shift);
  return {shift, p.cu_seqlens ? tiles + p.sequences : tiles > 1 ? tiles : 1};
}

/// Of the activations that the fast kernels take.
inline int64_t element_size(ScalarType type) {
  return type == ScalarType::kFloat32 ? 4 : 2;
}

/// Elements of 16 bytes: what a thread moves at once along time.
inline int64_t conv_vector(ScalarType type) {
  return 16 / element_size(type);
}
/// And channels. More would cost registers, hence threads.
constexpr int conv_channels(bool is_backward, int64_t size) {
  return is_backward && size == 4 ? 2 : 4;
}

/// The access that all of the activations allow.
inline ConvAccess conv_access(const ConvParams& p, std::initializer_list<const Activation*> activations,
                              bool is_backward) {
  if (p.activation_type == ScalarType::kFloat64 || p.width > kConvTaps || p.sequences == 0 || p.dim == 0) {
    return ConvAccess::kGeneric;
  }
  const int64_t size = element_size(p.activation_type);
  const int64_t steps = conv_vector(p.activation_type),
                wide = conv_channels(is_backward, element_size(p.activation_type));
  const auto is_aligned = [&](const Activation& x, int64_t vector, int64_t other_stride) {
    return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(vector * size) == 0 &&
           x.batch_stride % vector == 0 && other_stride % vector == 0;
  };
  bool time = true, channels = true, time_vectors = true, channel_vectors = p.dim % wide == 0;
  for (const Activation* x : activations) {
    if (!x->data) continue;
    time = time && (x->length_stride == 1 || p.length == 1);
    channels = channels && (x->dim_stride == 1 || p.dim == 1);
    time_vectors = time_vectors && x->length_stride == 1 && is_aligned(*x, steps, x->dim_stride);
    channel_vectors =
        channel_vectors && x->dim_stride == 1 && is_aligned(*x, wide, p.length == 1 ? 0 : x->length_stride);
  }
  if (channels && (!time || p.length == 1)) {
    return channel_vectors ? ConvAccess::kChannelVectors : ConvAccess::kChannelElements;
  }
  if (time) return time_vectors ? ConvAccess::kTimeVectors : ConvAccess::kTimeElements;
  return ConvAccess::kGeneric;
}
inline ConvAccess conv_forward_access(const ConvParams& p) {
  return conv_access(p, {&p.x, &p.out}, false);
}
inline ConvAccess conv_backward_access(const ConvGradParams& g) {
  return g.dout.data ? conv_access(g.conv, {&g.conv.x, &g.dout, &g.dx}, true) : ConvAccess::kGeneric;
}

/// Rounds of a warp along time, in each of which a lane takes a vector or an element.
constexpr int conv_rounds(ConvAccess access, bool is_backward) {
  return access == ConvAccess::kTimeElements ? 16 : is_backward ? 8 : 4;
}

/// Steps that a warp along time takes, or that a thread along channels walks: fewer where there would be too few
/// threads.
inline int conv_shift(const ConvParams& p, ConvAccess access, bool is_backward) {
  const bool by_vector = access == ConvAccess::kTimeVectors || access == ConvAccess::kChannelVectors;
  int shift = 0;
  if (is_along_time(access)) {
    const int64_t steps = 32 * conv_rounds(access, is_backward) * (by_vector ? conv_vector(p.activation_type) : 1);
    while (int64_t{1} << shift < steps) ++shift;
    return shift;
  }
  constexpr int kMost = 7, kLeast = 4;
  constexpr int64_t kEnoughThreads = 132 * 384;
  const int64_t channels = by_vector ? conv_channels(is_backward, element_size(p.activation_type)) : 1;
  const int64_t walks = p.batch * ceil_div(p.dim, channels);
  for (shift = kMost; shift > kLeast; --shift) {
    if (walks * ceil_div(p.length, int64_t{1} << shift) >= kEnoughThreads) break;
  }
  return shift;
}
inline ConvTiles conv_tiles(const ConvParams& p, ConvAccess access, bool is_backward) {
  return conv_tiles(p, conv_shift(p, access, is_backward));
}
/// A warp for each channel and tile, or a thread for some channels.
inline int64_t conv_blocks(const ConvParams& p, const ConvTiles& tiles, ConvAccess access, bool is_backward) {
  const int64_t rows = p.batch * tiles.per_row;
  if (is_along_time(access)) return rows * ceil_div(p.dim, kConvThreads / 32);
  const bool by_vector = access == ConvAccess::kChannelVectors;
  const int64_t channels = by_vector ? conv_channels(is_backward, element_size(p.activation_type)) : 1;
  return ceil_div(rows * (p.dim / channels), kConvThreads);
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
