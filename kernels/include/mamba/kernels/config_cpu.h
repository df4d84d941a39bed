// Pure functions from the size of a problem to how the CPU kernels cut it up, alike on every ISA level.
#pragma once

#include "mamba/kernels/config.h"

namespace mamba::kernels::cpu {

/// Channels that every piece of work has, where there are enough: as many as the widest vector has lanes.
constexpr int64_t kLeastChannels = 16;

/// Channels of a piece of forward work. Where neighbouring channels are neighbours in memory, a piece reads runs of
/// several lines, as long as there are pieces enough to go round.
inline int64_t forward_channels(const ScanParams& p) {
  constexpr int64_t kMostChannels = 64, kEnoughPieces = 16;
  int64_t channels = kLeastChannels;
  if (p.u.dim_stride != 1) return channels;
  while (channels < kMostChannels && p.sequences * (p.dim / (2 * channels)) >= kEnoughPieces) channels *= 2;
  return channels;
}

/// Chunks of time into which the forward of a single piece of channels is cut, so that several threads can share it.
/// Each but the last is scanned twice: first for the state it ends with, from zero, then in full. Two pieces already do
/// better uncut, on up to four threads.
inline int64_t forward_chunks(const ScanParams& p) {
  constexpr int64_t kMostChunks = 8, kLeastSteps = 512;
  if (p.is_complex || p.sequences != 1 || p.dim == 0 || p.dim > kLeastChannels) return 1;
  const int64_t chunks = p.length / kLeastSteps;
  return chunks < 1 ? 1 : chunks < kMostChunks ? chunks : kMostChunks;
}

/// Steps of a chunk, in whole tiles; the last may have fewer, or none.
constexpr int64_t kForwardTile = 4 * kCheckpointSpacing;
inline int64_t chunk_steps(const ScanParams& p, int64_t chunks) {
  return ceil_div(ceil_div(p.length, chunks), kForwardTile) * kForwardTile;
}

/// Most channels that the backward sweeps together: those of a wider block take turns.
constexpr int64_t kSweepChannels = 64;

/// The backward's pieces of the channels: the blocks, or several whole ones together where groups are narrow.
struct BackwardPieces {
  ChannelBlocks blocks;
  int64_t merged = 1, count = 0;

  explicit BackwardPieces(const ScanParams& p) : blocks(channel_blocks(p)) {
    if (blocks.width < kLeastChannels && blocks.per_unit == 1) merged = kLeastChannels / blocks.width;
    count = ceil_div(blocks.count, merged);
  }
  Range channels(int64_t piece) const {
    const int64_t first = piece * merged, end = first + merged < blocks.count ? first + merged : blocks.count;
    return {blocks.channels(first).begin, blocks.channels(end - 1).end};
  }
};

/// Most channels of a piece of a step: several vectors, since one alone waits for itself.
constexpr int64_t kUpdateChannels = 64;

/// A step whose heads and channels lie as if each channel were a head of its own, told so; any other as it is.
inline UpdateParams flattened(UpdateParams p) {
  const auto is_flat = [&](const auto& x) { return !x.data || x.head_stride == p.head_dim * x.dim_stride; };
  if (p.head_dim == 1 || !(is_flat(p.state) && is_flat(p.x) && is_flat(p.dt) && is_flat(p.z) && is_flat(p.out) &&
                           is_flat(p.A) && is_flat(p.D) && is_flat(p.dt_bias))) {
    return p;
  }
  const auto flatten = [](auto&... x) { ((x.head_stride = x.dim_stride), ...); };
  flatten(p.state, p.x, p.dt, p.z, p.out, p.A, p.D, p.dt_bias);
  p.heads *= p.head_dim;
  p.head_dim = 1;
  return p;
}

/// The pieces of a row of a step: the channels of a head, or the heads of one channel that share B and C, in blocks.
struct UpdatePieces {
  int64_t run = 1;  // channels that lie evenly apart and have the same B and C
  int64_t blocks = 0, count = 0;

  explicit UpdatePieces(const UpdateParams& p) {
    if (p.heads == 0 || p.head_dim == 0) return;
    run = p.head_dim > 1 ? p.head_dim : greatest_common_divisor(p.heads / p.B.groups, p.heads / p.C.groups);
    blocks = ceil_div(run, kUpdateChannels);
    count = p.heads * p.head_dim / run * blocks;
  }
  Range channels(int64_t piece) const {
    const int64_t first = piece % blocks * kUpdateChannels, end = first + kUpdateChannels;
    return {first, end < run ? end : run};
  }
};

}  // namespace mamba::kernels::cpu
