// Pure functions from the size of a problem to how the CPU kernels cut it up, alike on every ISA level.
#pragma once

#include "mamba/kernels/config.h"

namespace mamba::kernels::cpu {

/// Channels of a piece of forward work: as many as the widest vector has lanes.
constexpr int64_t kForwardChannels = 16;

/// Most channels that the backward sweeps together: those of a wider block take turns.
constexpr int64_t kSweepChannels = 64;

/// The backward's pieces of the channels: the blocks, or several whole ones together where groups are narrow.
struct BackwardPieces {
  ChannelBlocks blocks;
  int64_t merged = 1, count = 0;

  explicit BackwardPieces(const ScanParams& p) : blocks(channel_blocks(p)) {
    if (blocks.width < kForwardChannels && blocks.per_unit == 1) merged = kForwardChannels / blocks.width;
    count = ceil_div(blocks.count, merged);
  }
  Range channels(int64_t piece) const {
    const int64_t first = piece * merged, end = first + merged < blocks.count ? first + merged : blocks.count;
    return {blocks.channels(first).begin, blocks.channels(end - 1).end};
  }
};

}  // namespace mamba::kernels::cpu
