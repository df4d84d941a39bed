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

}  // namespace mamba::kernels::cpu
