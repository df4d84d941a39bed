// Tile shapes of the CUDA forward and the pure functions that choose among them.
#pragma once

#include <initializer_list>

#include "mamba/kernels/config_cuda.h"

namespace mamba::kernels::cuda {

/// Floats from one plane of a warp's tile to the next. Rows have 4 floats more than steps, and planes some more, so
/// that the quads that eight neighbouring lanes write, of one column in some rows and planes, lie in different banks.
constexpr int register_plane(int channels, int steps) {
  const int shift = channels > 4 ? channels : 4, rows = channels * (steps + 4);
  return (rows - shift + 2 * shift - 1) / (2 * shift) * (2 * shift) + shift;
}

/// The forward that keeps states in registers: `lanes` lanes share a channel, each with `states` of its states; a tile
/// has `steps` steps; `unroll` times four steps make the body of the inner loop. A block has `warps` warps that run the
/// recurrence, and for each of them `stagers` that feed it. A step takes a block `alone` cycles where it has a
/// processor for itself, and `together` where as many as fit share one: measured, to choose by.
template <int lanes, int states, int steps, int warps, int stagers, int blocks_per_processor, int unroll, int alone,
          int together>
struct RegisterShape {
  static constexpr int kLanes = lanes, kStates = states, kSteps = steps, kWarps = warps, kStagers = stagers;
  static constexpr int kBlocksPerProcessor = blocks_per_processor, kUnroll = unroll;
  static constexpr int kDstate = lanes * states, kBlockChannels = warps * 32 / lanes;
  static constexpr int kAlone = alone, kTogether = together;
  /// At most, with activations of any type.
  static constexpr int64_t kSharedBytes =
      544 + warps * (8 * (1 + lanes) * register_plane(32 / lanes, steps) + 256 / lanes + 32) +
      kDstate * (16 * (steps + 4) + 4 * steps);
};

/// By dstate; those of one dstate by the channels of a block, most first.
using RegisterShapes =
    ShapeList<RegisterShape<2, 4, 32, 4, 2, 2, 2, 91, 178>,  //
              RegisterShape<2, 8, 32, 4, 1, 2, 2, 135, 223>, RegisterShape<4, 4, 64, 5, 1, 1, 4, 106, 106>,
              RegisterShape<2, 8, 32, 2, 2, 2, 4, 105, 122>, RegisterShape<8, 2, 64, 4, 1, 2, 4, 57, 79>,  //
              RegisterShape<4, 8, 32, 4, 1, 2, 4, 124, 224>,                                               //
              RegisterShape<8, 8, 32, 4, 1, 2, 2, 122, 216>,                                               //
              RegisterShape<16, 8, 32, 8, 1, 1, 2, 215, 215>, RegisterShape<16, 16, 32, 4, 1, 1, 2, 230, 230>>;

/// The forward whose lanes share out time: `lanes` lanes with `lane_steps` steps each to a channel; `slices` warps take
/// turns at the tiles of the same channels. B and C pass through shared memory `states` states at a time. A block has
/// groups of `slices` warps, at most `most_groups`.
template <int lanes, int lane_steps, int states, int slices, int most_groups, int blocks_per_processor>
struct ForwardLaneShape {
  static constexpr int kLanes = lanes, kLaneSteps = lane_steps, kStates = states, kSlices = slices;
  static constexpr int kMostGroups = most_groups, kMostWarps = most_groups * slices;
  static constexpr int kBlocksPerProcessor = blocks_per_processor, kWarpChannels = 32 / lanes;
  static constexpr int kPitch = lanes * lane_steps * 9 / 8;
  /// At most: of a warp's rows of activations, and of B and C.
  static constexpr int64_t row_bytes(int64_t element_size) { return 3 * kWarpChannels * (element_size * kPitch + 128); }
  static constexpr int64_t coefficient_bytes(int64_t element_size) {
    return 768 + slices * (states * (element_size == 4 ? 16 : 20) * kPitch + 256);
  }
  /// At most, with activations of any type.
  static constexpr int64_t shared_bytes(int64_t dstate, int64_t groups) {
    const int64_t single = coefficient_bytes(4) + groups * slices * row_bytes(4);
    const int64_t half = coefficient_bytes(2) + groups * slices * row_bytes(2);
    return (single > half ? single : half) + groups * kWarpChannels * dstate * (8 * slices + 4);
  }
};

/// By the warps that take turns.
using ForwardLaneShapes = ShapeList<ForwardLaneShape<16, 16, 16, 1, 12, 1>, ForwardLaneShape<16, 16, 8, 2, 6, 1>,
                                    ForwardLaneShape<16, 16, 4, 4, 3, 1>, ForwardLaneShape<16, 16, 4, 8, 1, 1>>;

template <class... Shapes>
constexpr int most_groups(ShapeList<Shapes...>, int shape) {
  constexpr int groups[] = {Shapes::kMostGroups...};
  return groups[shape];
}
template <class... Shapes>
constexpr int64_t lane_bytes(ShapeList<Shapes...>, int shape, int64_t dstate, int64_t groups) {
  const int64_t bytes[] = {Shapes::shared_bytes(dstate, groups)...};
  return bytes[shape];
}
template <class... Shapes>
constexpr int64_t register_bytes(ShapeList<Shapes...>, int shape) {
  constexpr int64_t bytes[] = {Shapes::kSharedBytes...};
  return bytes[shape];
}

/// How the forward that keeps states in registers moves activations: four elements with one instruction, along the
/// contiguous dimension, where alignment allows; else one by one, neighbours in memory by neighbouring lanes.
enum class Access { kTimeVectors, kReversedTimeVectors, kChannelVectors, kTimeElements, kChannelElements };

/// Whether quads of elements that follow each other by `stride` may be moved as vectors: those that begin at multiples
/// of four elements from the first of any line, `other_stride` and `batch_stride` apart. 32 lines must stay within 32
/// bits.
inline bool are_vectors(const Activation& x, int64_t stride, int64_t other_stride, int64_t element_size) {
  if (!x.data) return true;
  constexpr int64_t kFarthest = int64_t{1} << 26;
  return stride == 1 && other_stride < kFarthest && other_stride % 4 == 0 && x.batch_stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(4 * element_size) == 0;
}

inline Access forward_access(const ScanParams& p, const ChannelBlocks& blocks, bool few_channels) {
  const int64_t element_size = p.activation_type == ScalarType::kFloat32 ? 4 : 2;
  const bool along_time = p.u.dim_stride != 1 || p.u.length_stride == 1;
  // Quads begin at multiples of four steps from a sequence's end that is scanned first, or of four channels of a block.
  bool vectors =
      along_time ? !p.cu_seqlens && p.length % 4 == 0 : !few_channels && blocks.unit % 4 == 0 && blocks.width % 4 == 0;
  for (const Activation* x : {&p.u, &p.delta, &p.z, &p.out}) {
    vectors = vectors && (along_time ? are_vectors(*x, x->length_stride, x->dim_stride, element_size)
                                     : are_vectors(*x, x->dim_stride, x->length_stride, element_size));
  }
  if (along_time && vectors) return p.reverse ? Access::kReversedTimeVectors : Access::kTimeVectors;
  if (along_time) return Access::kTimeElements;
  return vectors ? Access::kChannelVectors : Access::kChannelElements;
}

}  // namespace mamba::kernels::cuda
