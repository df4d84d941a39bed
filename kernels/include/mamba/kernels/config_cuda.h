// Tile shapes of the CUDA kernels and the pure functions that choose among them.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "mamba/kernels/config.h"

namespace mamba::kernels::cuda {

/// What the choices depend on besides the problem.
struct Machine {
  int64_t processors = 132;
  int64_t shared_memory = 227 * 1024;  // bytes that a block may have
};

template <class... Shapes>
struct ShapeList {
  static constexpr int kCount = sizeof...(Shapes);
};

/// The carries of chunks: 32 lanes with 8 steps each to a pair of channels, 16 states to a block.
struct CarryShape {
  static constexpr int kWarps = 8, kStates = 16, kBlockChannels = 2 * kWarps;
};

/// The backward: `lanes` lanes with 8 steps each to a pair of channels, `states` states at a time.
template <int lanes, int states, int warps, int blocks_per_processor>
struct BackwardShape {
  static constexpr int kLanes = lanes, kStates = states, kWarps = warps;
  static constexpr int kBlocksPerProcessor = blocks_per_processor;
  static constexpr int kDstate = 0, kBlockChannels = warps * 64 / lanes;  // dstate is a run-time loop
};

/// The widest blocks first.
using BackwardShapes = ShapeList<BackwardShape<4, 16, 4, 2>, BackwardShape<8, 8, 4, 2>, BackwardShape<16, 4, 4, 2>>;

/// What the choice of a shape looks at.
struct ShapeFacts {
  int dstate, block_channels, blocks_per_processor;
};

/// The index of a shape.
template <class Shape, class... Shapes>
constexpr int shape_index(ShapeList<Shapes...>) {
  int index = 0, at = 0;
  ((index = std::is_same_v<Shape, Shapes> ? at : index, ++at), ...);
  return index;
}

template <class... Shapes>
constexpr ShapeFacts shape_facts(ShapeList<Shapes...>, int shape) {
  constexpr ShapeFacts facts[] = {{Shapes::kDstate, Shapes::kBlockChannels, Shapes::kBlocksPerProcessor}...};
  return facts[shape];
}

/// The backward adds up dA over the lanes of a channel at the end if there are no more states, else in every tile.
constexpr int kFewStates = 16;

/// Shared memory that a block of the backward takes at most, in bytes.
constexpr int64_t backward_shared_memory(int shape, int64_t dstate) {
  constexpr int64_t kFixed[] = {83328, 77696, 77952}, kStates[] = {16, 8, 4};
  const int64_t shares = dstate > kFewStates ? kStates[shape] : kFewStates;
  return kFixed[shape] + 12 * shape_facts(BackwardShapes(), shape).block_channels * (dstate + 1) + 1024 * shares;
}

/// Blocks of at most `width` neighbouring channels, none of which straddles a group of B or C.
inline ChannelBlocks blocks_of_channels(const ScanParams& p, int64_t width) {
  ChannelBlocks blocks;
  blocks.unit = greatest_common_divisor(group_size(p.B, p.dim), group_size(p.C, p.dim));
  blocks.width = width < blocks.unit ? width : blocks.unit;
  blocks.per_unit = ceil_div(blocks.unit, blocks.width);
  blocks.count = p.dim / blocks.unit * blocks.per_unit;
  return blocks;
}

/// Whether the fast kernels take the problem: real states, single or half precision, B and C that depend on time.
inline bool is_fast(const ScanParams& p) {
  constexpr int64_t kMostStates = 256, kMostSteps = (int64_t{1} << 31) - 4096;
  const bool is_single = p.activation_type == ScalarType::kFloat32;
  auto is_taken = [&](const Coefficient& x) { return !x.is_constant && (is_single || !x.is_state_type); };
  return p.activation_type != ScalarType::kFloat64 && !p.is_complex && is_taken(p.B) && is_taken(p.C) &&
         p.sequences > 0 && p.dim > 0 && p.length > 0 && p.length < kMostSteps && p.dstate > 0 &&
         p.dstate <= kMostStates;
}

/// What one instruction of the backward moves: four steps of a channel, in the order of the scan or against it; one
/// step of two neighbouring channels; one element.
enum class PairAccess { kTime, kReversedTime, kChannels, kElements };

/// The best of these for all these activations of a problem.
inline PairAccess pair_access(const ScanParams& p, const ChannelBlocks& blocks,
                              std::initializer_list<const Activation*> activations) {
  constexpr int64_t kFarthest = int64_t{1} << 31;  // strides stay within 32 bits
  const auto element_size = static_cast<uintptr_t>(p.activation_type == ScalarType::kFloat32 ? 4 : 2);
  bool along_time = !p.cu_seqlens && p.length % 4 == 0;
  bool along_channels = blocks.unit % 2 == 0 && blocks.width % 2 == 0;
  for (const Activation* x : activations) {
    if (!x->data) continue;
    auto fits = [&](int64_t stride, int64_t other_stride, int64_t elements) {
      return stride == 1 && other_stride > -kFarthest && other_stride < kFarthest && other_stride % elements == 0 &&
             x->batch_stride % elements == 0 &&
             reinterpret_cast<uintptr_t>(x->data) % (static_cast<uintptr_t>(elements) * element_size) == 0;
    };
    along_time = along_time && fits(x->length_stride, x->dim_stride, 4);
    along_channels = along_channels && fits(x->dim_stride, x->length_stride, 2);
  }
  if (along_time) return p.reverse ? PairAccess::kReversedTime : PairAccess::kTime;
  return along_channels ? PairAccess::kChannels : PairAccess::kElements;
}
inline PairAccess pair_access(const ScanGradParams& grad, const ChannelBlocks& blocks) {
  const ScanParams& p = grad.scan;
  return pair_access(p, blocks, {&p.u, &p.delta, &p.z, &grad.dout, &grad.du, &grad.ddelta, &grad.dz});
}

/// How the fast backward cuts up a problem, and where in its workspace the partial sums lie, in floats.
struct BackwardPlan {
  int shape = 0;
  int chunks = 1, chunk_steps = 0;  // of each sequence
  ChannelBlocks blocks;
  int64_t sequences_per_block = 1, parts = 0;  // parts: of sequences and chunks, one block each for some channels
  int64_t pitch = 0;                           // of a row of dB or dC
  int64_t dB = 0, dC = 0, dA = 0, dD = 0, ddelta_bias = 0, chunk_adjoints = 0, chunk_exponents = 0, floats = 0;
};

/// Rows of the gradient of B or C: one for each batch, group and state.
inline int64_t coefficient_rows(const ScanParams& p, const Coefficient& x) {
  return p.batch * x.groups * p.dstate;
}

/// Chunks of time begin at multiples of so many steps.
constexpr int64_t kChunkUnit = 128;

/// Steps of the chunks, if there are to be so many.
inline int64_t chunk_steps(const ScanParams& p, int64_t chunks) {
  return ceil_div(ceil_div(p.length, chunks), kChunkUnit) * kChunkUnit;
}

/// A shape of the backward, and the steps of the chunks that a sequence is cut into; 0 for one chunk.
struct BackwardChoice {
  int shape = 0;
  int64_t chunk_steps = 0;
};

/// The cost of a choice, in steps of channels that a processor takes one after the other: two blocks at a time hide
/// latencies that one alone waits for, smaller blocks repeat more work, and the adjoint carries of chunks are a pass of
/// their own over nearly all of the input.
inline double backward_cost(const ScanParams& p, const Machine& machine, const BackwardChoice& choice) {
  constexpr double kAlone = 0.7, kOverhead[] = {0, 0.08, 0.2}, kOfBlock = 1000, kCarryPass = 900, kCarryShare = 0.45;
  const int64_t width = shape_facts(BackwardShapes(), choice.shape).block_channels;
  const int64_t chunks = choice.chunk_steps > 0 ? ceil_div(p.length, choice.chunk_steps) : 1;
  const int64_t steps = chunks > 1 ? choice.chunk_steps : p.length;
  const int64_t rounds = ceil_div(p.sequences * blocks_of_channels(p, width).count * chunks, machine.processors);
  const double block = static_cast<double>(width * steps) * (1 + kOverhead[choice.shape]) + kOfBlock;
  const double all = static_cast<double>(p.sequences * p.dim * p.length) / static_cast<double>(2 * machine.processors);
  const double carries = kCarryPass + kCarryShare * all * static_cast<double>(chunks - 1) / static_cast<double>(chunks);
  return block * (static_cast<double>(rounds / 2) + (rounds % 2 == 0 ? 0 : kAlone)) + (chunks > 1 ? carries : 0);
}

/// Whether the fast backward has the shared memory that its narrowest blocks take.
inline bool has_backward(const ScanParams& p, const Machine& machine) {
  return backward_shared_memory(BackwardShapes::kCount - 1, p.dstate) <= machine.shared_memory;
}

inline BackwardChoice backward_choice(const ScanParams& p, const Machine& machine) {
  constexpr int64_t kMostChunks = 64, kReserved = 1024;  // bytes that the system takes of a block
  // Of blocks with many states two do not fit on a processor, unless they are narrow.
  auto fit = [&](int shape) {
    return 2 * (backward_shared_memory(shape, p.dstate) + kReserved) <= machine.shared_memory + kReserved;
  };
  int first_shape = 0;
  while (first_shape + 1 < BackwardShapes::kCount && !fit(first_shape)) ++first_shape;
  BackwardChoice best{first_shape, 0};
  for (int shape = first_shape; shape < BackwardShapes::kCount; ++shape) {
    for (int64_t chunks = 1; chunks <= kMostChunks && !(p.cu_seqlens && chunks > 1); ++chunks) {
      const int64_t steps = chunk_steps(p, chunks);
      const BackwardChoice choice{shape, chunks > 1 && steps < p.length ? steps : 0};
      if (backward_cost(p, machine, choice) < backward_cost(p, machine, best)) best = choice;
    }
  }
  return best;
}

inline BackwardPlan backward_plan(const ScanGradParams& grad, const Machine& machine, const BackwardChoice& choice) {
  const ScanParams& p = grad.scan;
  BackwardPlan plan;
  plan.shape = choice.shape;
  if (choice.chunk_steps > 0 && choice.chunk_steps < p.length) {
    plan.chunk_steps = static_cast<int>(choice.chunk_steps);
    plan.chunks = static_cast<int>(ceil_div(p.length, choice.chunk_steps));
  }
  plan.blocks = blocks_of_channels(p, shape_facts(BackwardShapes(), plan.shape).block_channels);

  // Blocks go through several short sequences: fewer partial sums of dA.
  constexpr int64_t kBlocksPerProcessor = 8, kSteps = 512;
  const int64_t steps = ceil_div(p.batch * p.length, p.sequences);
  const int64_t spare = p.sequences * plan.blocks.count / (kBlocksPerProcessor * machine.processors);
  const int64_t wanted = kSteps / (steps > 0 ? steps : 1);
  plan.sequences_per_block = spare < wanted ? spare : wanted;
  if (plan.sequences_per_block < 1 || plan.chunks > 1) plan.sequences_per_block = 1;
  plan.parts = ceil_div(p.sequences, plan.sequences_per_block) * plan.chunks;
  plan.pitch = ceil_div(p.length, 4) * 4;

  auto reserve = [&](const void* gradient, int64_t count) {
    const int64_t at = plan.floats;
    if (gradient) plan.floats += ceil_div(count, 4) * 4;
    return at;
  };
  auto coefficient = [&](const void* gradient, const Coefficient& x) {
    return reserve(gradient, plan.blocks.slices(group_size(x, p.dim)) * coefficient_rows(p, x) * plan.pitch);
  };
  plan.dB = coefficient(grad.dB, p.B);
  plan.dC = coefficient(grad.dC, p.C);
  plan.dA = reserve(grad.dA, plan.parts * p.dim * p.dstate);
  plan.dD = reserve(grad.dD, plan.parts * p.dim);
  plan.ddelta_bias = reserve(grad.ddelta_bias, plan.parts * p.dim);
  const void* carries = plan.chunks > 1 ? p.A : nullptr;
  plan.chunk_adjoints = reserve(carries, p.sequences * plan.chunks * p.dstate * p.dim);
  plan.chunk_exponents = reserve(carries, p.sequences * plan.chunks * p.dim);
  return plan;
}
inline BackwardPlan backward_plan(const ScanGradParams& grad, const Machine& machine) {
  return backward_plan(grad, machine, backward_choice(grad.scan, machine));
}

}  // namespace mamba::kernels::cuda
