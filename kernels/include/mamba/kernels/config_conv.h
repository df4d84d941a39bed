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

/// Tiles of some steps of a row; along channels, packed rows have tiles of 2^shift steps, which begin at multiples of
/// it, or where a sequence begins, and each belongs to one sequence; see ConvTile.
struct ConvTiles {
  int steps = 1, shift = 0;
  int64_t per_row = 1;
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

/// Further than any tile reaches.
constexpr int kConvFar = 1 << 29;

/// Steps from `begin` to `time`, in 32 bits: of what is far only that it is.
MAMBA_HD inline int conv_steps_from(int64_t begin, int64_t time) {
  const int64_t away = time - begin;
  return static_cast<int>(away < -kConvFar ? -kConvFar : away > kConvFar ? kConvFar : away);
}

/// A tile: some steps of one sequence. All steps are counted from the first of its window. The tiles of the first and
/// of the last sequence together cover what lies outside every sequence too, where results are 0.
struct ConvTile {
  int64_t sequence = 0, window = 0;
  int start = 0, stop = 0;                       // of the sequence
  int begin = 0, end = 0;                        // of the tile; none for a tile that no sequence has
  int length = 0;                                // of the row
  bool is_first = false, is_last = false;        // of its sequence, for which it stands also when that is empty
  bool zero_before = false, zero_after = false;  // steps of the window before start, and from stop on

  MAMBA_HD bool zeroes(int time) const {
    return (zero_before && time < start) || (zero_after && time >= stop && time < length);
  }
};

/// The sequences of a row are counted from 0, and bound i is where sequence i begins and the one before ends. Bounds of
/// packed sequences, which are not read back, stay within the row.
MAMBA_HD inline int64_t conv_row_sequences(const ConvParams& p) {
  return p.cu_seqlens ? p.sequences : 1;
}
MAMBA_HD inline int64_t conv_row_bound(const ConvParams& p, int64_t i) {
  if (!p.cu_seqlens) return i > 0 ? p.length : 0;
  const int64_t bound = p.cu_seqlens[i];
  return bound < 0 ? 0 : bound > p.length ? p.length : bound;
}

/// The sequence whose step `time` is: -1 before all sequences, conv_row_sequences() after them.
MAMBA_HD inline int64_t conv_sequence_at(const ConvParams& p, int64_t time) {
  int64_t low = 0, high = conv_row_sequences(p) + 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (conv_row_bound(p, middle) <= time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

/// Whether a packed row's tiles of the sequence are numbered `index` or less. The tiles of sequence i are numbered from
/// start / steps + i on, which keeps those of different sequences apart.
MAMBA_HD inline bool conv_begins(const ConvParams& p, const ConvTiles& tiles, int64_t sequence, int64_t index) {
  return (conv_row_bound(p, sequence) >> tiles.shift) + sequence <= index;
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

/// Sequence `index` of a row, its steps counted from `window`, a tile of no steps.
MAMBA_HD inline ConvTile conv_sequence_tile(const ConvParams& p, int64_t batch, int64_t index, int64_t window) {
  ConvTile tile;
  tile.sequence = p.cu_seqlens ? index : batch;
  tile.window = window;
  tile.start = conv_steps_from(window, conv_row_bound(p, index));
  tile.stop = conv_steps_from(window, conv_row_bound(p, index + 1));
  if (tile.stop < tile.start) tile.stop = tile.start;
  tile.length = conv_steps_from(window, p.length);
  return tile;
}

/// Tile `index` of a row, of the sequence that it belongs to.
MAMBA_HD inline ConvTile conv_tile(const ConvParams& p, const ConvTiles& tiles, int64_t batch, int64_t index) {
  const int64_t sequence = p.cu_seqlens ? conv_sequence(p, tiles, index) : 0;
  const int64_t window = (index - sequence) * tiles.steps;
  ConvTile tile = conv_sequence_tile(p, batch, sequence, window);
  const auto has = [&](int time) { return time >= 0 && time < tiles.steps; };
  tile.is_first = has(tile.start);
  tile.is_last = has(tile.stop > tile.start ? tile.stop - 1 : tile.start);
  tile.zero_before = p.cu_seqlens && sequence == 0 && tile.start > 0;
  tile.zero_after = p.cu_seqlens && sequence == p.sequences - 1 && tile.stop < tiles.steps && tile.stop < tile.length;
  tile.begin = tile.start > 0 ? tile.start : 0;
  tile.end = tile.stop < tiles.steps ? tile.stop : tiles.steps;
  if (tile.end < tile.begin) tile.end = tile.begin;
  return tile;
}

/// Of the activations that the fast kernels take.
inline int64_t element_size(ScalarType type) {
  return type == ScalarType::kFloat32 ? 4 : 2;
}

/// Elements of 16 bytes: what a thread moves at once along time.
inline int conv_vector(ScalarType type) {
  return static_cast<int>(16 / element_size(type));
}
/// And channels. More would cost registers, hence threads.
constexpr int conv_channels(bool is_backward) {
  return is_backward ? 2 : 4;
}

/// The access that all of the activations allow.
inline ConvAccess conv_access(const ConvParams& p, std::initializer_list<const Activation*> activations,
                              bool is_backward) {
  if (p.activation_type == ScalarType::kFloat64 || p.width > kConvTaps || p.sequences == 0 || p.dim == 0) {
    return ConvAccess::kGeneric;
  }
  const int64_t size = element_size(p.activation_type);
  const int64_t steps = conv_vector(p.activation_type), wide = conv_channels(is_backward);
  const auto is_aligned = [&](const Activation& x, int64_t vector, int64_t other_stride) {
    return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(vector * size) == 0 &&
           x.batch_stride % vector == 0 && other_stride % vector == 0;
  };
  constexpr int64_t kMostStride = 1 << 26;  // 32 bits hold its bytes
  bool time = true, channels = true, time_vectors = true, channel_vectors = p.dim % wide == 0;
  for (const Activation* x : activations) {
    if (!x->data) continue;
    time = time && (x->length_stride == 1 || p.length == 1);
    const bool is_near = x->length_stride < kMostStride && x->length_stride > -kMostStride;
    channels = channels && (x->dim_stride == 1 || p.dim == 1) && (is_near || p.length == 1);
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

/// Rounds of a warp along time, in each of which a lane takes some steps.
MAMBA_HD constexpr int conv_rounds(bool is_backward) {
  return is_backward ? 8 : 4;
}

/// Blocks of the kernels along channels that a multiprocessor runs at once.
MAMBA_HD constexpr int conv_channel_blocks(bool is_backward, int64_t element_size) {
  return !is_backward ? 6 : element_size == 4 ? 4 : 5;
}

/// Steps that a thread along channels walks. The forward wants some threads; the backward, which has few at once, wants
/// all blocks to run at once, or in full turns.
inline int conv_walk(const ConvParams& p, int64_t channels, bool is_backward) {
  constexpr int kProcessors = 132, kEnoughThreads = 384, kMost = 128, kLeast = 16;
  constexpr int kStart = 12;  // what it costs to begin, in steps
  const int64_t walks = p.batch * ceil_div(p.dim, channels);
  if (!is_backward) {
    int steps = kMost;
    while (steps > kLeast && walks * ceil_div(p.length, int64_t{steps}) < kProcessors * kEnoughThreads) steps /= 2;
    return steps;
  }
  const int64_t at_once = kProcessors * conv_channel_blocks(is_backward, element_size(p.activation_type));
  int best = kMost;
  int64_t least_time = 0;
  for (int steps = kMost; steps >= kLeast; p.cu_seqlens ? steps /= 2 : steps -= 4) {
    const int64_t tiles = ceil_div(p.length, int64_t{steps}) + (p.cu_seqlens ? p.sequences : 0);
    const int64_t time = ceil_div(ceil_div(walks * tiles, kConvThreads), at_once) * (steps + kStart);
    if (least_time > 0 && time >= least_time) continue;
    least_time = time;
    best = steps;
  }
  return best;
}

inline ConvTiles conv_tiles(const ConvParams& p, ConvAccess access, bool is_backward) {
  const bool by_vector = access == ConvAccess::kTimeVectors || access == ConvAccess::kChannelVectors;
  ConvTiles tiles;
  if (is_along_time(access)) {
    const int vector = by_vector || is_backward ? conv_vector(p.activation_type) : 1;
    tiles.steps = 32 * vector * conv_rounds(is_backward);
  } else {
    tiles.steps = conv_walk(p, by_vector ? conv_channels(is_backward) : 1, is_backward);
  }
  while (1 << tiles.shift < tiles.steps) ++tiles.shift;
  tiles.per_row = ceil_div(p.length, int64_t{tiles.steps});
  if (p.cu_seqlens && !is_along_time(access)) tiles.per_row += p.sequences;
  if (tiles.per_row == 0) tiles.per_row = 1;
  return tiles;
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
