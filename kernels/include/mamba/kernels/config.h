// Pure functions from the size of a problem to how it is cut up. Nothing here depends on the machine's threads, so
// neither do the bits of any result.
#pragma once

#include <cstdint>

#include "mamba/kernels/numeric.h"
#include "mamba/kernels/params.h"

namespace mamba::kernels {

constexpr MAMBA_HD int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

/// Steps, in the order of the scan, between the states that the forward saves for the backward.
constexpr int64_t kCheckpointSpacing = 32;

/// Slots along time in the checkpoints of one batch row. Sequence i of a packed call begins at first_slot().
template <class Int>
Int checkpoint_slots(const Int& length, const Int& packed_sequences) {
  return (length + (kCheckpointSpacing - 1)) / kCheckpointSpacing + packed_sequences;
}

/// Distinct for all tiles of all sequences, and below checkpoint_slots(), for any non-overlapping packing.
constexpr MAMBA_HD int64_t first_slot(int64_t sequence, int64_t start) {
  return start / kCheckpointSpacing + sequence;
}

/// Negative: padding.
MAMBA_HD inline int64_t slot_of(const SlotOfRow& slots, int64_t row) {
  if (!slots.data) return row;
  const int64_t at = row * slots.stride;
  return slots.is_int32 ? static_cast<const int32_t*>(slots.data)[at] : static_cast<const int64_t*>(slots.data)[at];
}

/// How the backward's channels are cut into blocks, each swept by one worker, such that no block straddles a group of
/// B or C: sums over the channels of a group are then sums over whole blocks, in order.
struct ChannelBlocks {
  int64_t unit = 1;   // the channels of every group are a whole number of units
  int64_t width = 1;  // channels of a block; the last one of a unit may have fewer
  int64_t per_unit = 1;
  int64_t count = 0;

  MAMBA_HD Range channels(int64_t block) const {
    const int64_t first = block / per_unit * unit, begin = first + block % per_unit * width;
    const int64_t end = begin + width;
    return {begin, end < first + unit ? end : first + unit};
  }
  /// The place of a block among the blocks of its group of `group_size` channels.
  MAMBA_HD int64_t slice(int64_t block, int64_t group_size) const { return block % (group_size / unit * per_unit); }
  int64_t slices(int64_t group_size) const { return group_size / unit * per_unit; }
};

constexpr int64_t greatest_common_divisor(int64_t x, int64_t y) {
  return y == 0 ? x : greatest_common_divisor(y, x % y);
}

/// Channels over which a gradient of `x` is summed. A constant coefficient has an entry for each channel.
inline int64_t group_size(const Coefficient& x, int64_t dim) {
  return x.is_constant ? dim : dim / x.groups;
}

/// Channels of a block from which on the partial sums of dB and dC, and beside them two tensors of the size of the
/// states (the sums of dA and the adjoint), take no more memory than u. Where a group has fewer channels, its one block
/// needs as much as the gradients of B and C themselves. Sequences shorter than a few dstate are not aimed at.
inline int64_t least_channels(const ScanParams& p) {
  const int64_t of_states = p.batch == 0 ? 0 : 2 * p.dstate * p.sequences / p.batch;
  const int64_t of_sums = 2 * p.dstate, spare = p.length - of_states;
  return spare > of_sums ? ceil_div(of_sums * p.length, spare) : 2 * of_sums;
}

/// Wide blocks have few sums to add, as long as there are blocks enough to go round.
inline ChannelBlocks channel_blocks(const ScanParams& p) {
  if (p.dim == 0) return {};
  constexpr int64_t kVector = 16, kLeastWidth = 32, kWideWidth = 64, kEnoughBlocks = 16;
  ChannelBlocks blocks;
  blocks.unit = greatest_common_divisor(group_size(p.B, p.dim), group_size(p.C, p.dim));
  int64_t least = least_channels(p) > kLeastWidth ? least_channels(p) : kLeastWidth;
  if (least < kWideWidth && p.sequences * (p.dim / kWideWidth) >= kEnoughBlocks) least = kWideWidth;
  const int64_t most_blocks = blocks.unit < least ? 1 : blocks.unit / least;
  const int64_t width = ceil_div(ceil_div(blocks.unit, most_blocks), kVector) * kVector;
  blocks.width = width < blocks.unit ? width : blocks.unit;
  blocks.per_unit = ceil_div(blocks.unit, blocks.width);
  blocks.count = p.dim / blocks.unit * blocks.per_unit;
  return blocks;
}

/// Leading partial sums of the gradient of a coefficient, to be added in order.
inline int64_t partial_sums(const ScanParams& p, const Coefficient& x) {
  if (x.is_constant) return p.sequences;
  return p.dim == 0 ? 0 : channel_blocks(p).slices(group_size(x, p.dim));
}

}  // namespace mamba::kernels
