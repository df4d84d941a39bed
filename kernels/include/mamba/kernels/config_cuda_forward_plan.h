// Which CUDA forward a problem gets, and how it is cut up: pure functions that compare measured costs.
#pragma once

#include "mamba/kernels/config_cuda_forward.h"

namespace mamba::kernels::cuda {

/// How the fast forward cuts up a problem, and where in its workspace the carries of chunks lie, in floats.
struct ForwardPlan {
  bool over_lanes = false;                  // time is shared out over lanes; else states are kept in registers
  int shape = 0;                            // in ForwardLaneShapes, or RegisterShapes
  int groups = 1;                           // over lanes: of warps in a block
  int64_t chunks = 1, chunk_steps = 0;      // in registers: of each sequence
  int64_t chunk_exponents = 0, floats = 0;  // the exponents lie behind the states
};

/// States in registers, each sequence cut into chunks of so many steps; one chunk, if 0.
inline ForwardPlan register_plan(const ScanParams& p, int shape, int64_t chunk_steps) {
  ForwardPlan plan;
  plan.shape = shape;
  if (chunk_steps > 0 && chunk_steps < p.length) {
    plan.chunk_steps = chunk_steps;
    plan.chunks = ceil_div(p.length, chunk_steps);
    plan.chunk_exponents = p.sequences * plan.chunks * p.dstate * p.dim;
    plan.floats = plan.chunk_exponents + p.sequences * plan.chunks * p.dim;
  }
  return plan;
}
inline ForwardPlan lane_plan(int shape, int groups) {
  ForwardPlan plan;
  plan.over_lanes = true;
  plan.shape = shape;
  plan.groups = groups;
  return plan;
}

/// Whether a plan takes no more shared memory than there is. Over lanes, fewer groups than four do not keep a processor
/// busy.
inline bool fits(const ScanParams& p, const Machine& machine, const ForwardPlan& plan) {
  constexpr int64_t kLeastGroups = 4;
  return (plan.over_lanes ? lane_bytes(ForwardLaneShapes(), 0, p.dstate, kLeastGroups)
                          : register_bytes(RegisterShapes(), plan.shape)) <= machine.shared_memory;
}

/// The costs below are cycles of a processor. Steps of a sequence; of packed ones the mean.
inline int64_t mean_steps(const ScanParams& p) {
  return ceil_div(p.batch * p.length, p.sequences);
}

/// What `blocks` of a shape take for so many steps: rounds in which as many blocks as fit share each processor, and
/// what is left. In each round a block begins and ends.
template <class... Shapes>
double rounds_cost(ShapeList<Shapes...>, int64_t blocks, double steps, const Machine& machine, int shape) {
  constexpr double kOfRound = 6000;
  constexpr int kTogether[] = {Shapes::kTogether...}, kAlone[] = {Shapes::kAlone...};
  constexpr int kAtOnce[] = {Shapes::kBlocksPerProcessor...};
  const int64_t rounds = blocks / (machine.processors * kAtOnce[shape]);
  const int64_t left = ceil_div(blocks - rounds * machine.processors * kAtOnce[shape], machine.processors);
  const double more =
      kAtOnce[shape] > 1 ? static_cast<double>(kTogether[shape] - kAlone[shape]) / (kAtOnce[shape] - 1) : 0;
  const double last = left > 0 ? kOfRound + steps * (kAlone[shape] + static_cast<double>(left - 1) * more) : 0;
  return static_cast<double>(rounds) * (kOfRound + steps * kTogether[shape]) + last;
}

/// Until the last block of a sequence has been through the carries of the chunks before it, a lane state after state.
template <class... Shapes>
double chain_cost(ShapeList<Shapes...>, const ForwardPlan& plan) {
  constexpr int kStates[] = {Shapes::kStates...}, kOfState = 80;
  return static_cast<double>((plan.chunks - 1) * kStates[plan.shape] * kOfState);
}

/// The carries of all chunks but one: whole tiles, two blocks at a time on each processor. After some tiles most states
/// have decayed, unless they decay slowly.
inline double carry_cost(const ScanParams& p, const Machine& machine, const ForwardPlan& plan) {
  constexpr double kLaunch = 14000, kOfBlock = 4000, kOfTile = 12600, kOfLaterTile = 6200, kAlone = 0.6;
  constexpr int64_t kTileSteps = 256, kFirstTiles = 6;
  const int64_t blocks = p.sequences * (plan.chunks - 1) * ceil_div(p.dstate, CarryShape::kStates) *
                         blocks_of_channels(p, CarryShape::kBlockChannels).count;
  const int64_t tiles = ceil_div(plan.chunk_steps, kTileSteps), later = tiles > kFirstTiles ? tiles - kFirstTiles : 0;
  const double block =
      kOfBlock + kOfTile * static_cast<double>(tiles - later) + kOfLaterTile * static_cast<double>(later);
  const double rounds = static_cast<double>(blocks) / static_cast<double>(2 * machine.processors);
  return kLaunch + block * (rounds > 1 ? rounds : blocks > machine.processors ? 1 : kAlone);
}

inline double register_cost(const ScanParams& p, const Machine& machine, const ForwardPlan& plan) {
  constexpr double kLaunch = 2000;
  const int64_t width = shape_facts(RegisterShapes(), plan.shape).block_channels;
  const int64_t blocks = p.sequences * plan.chunks * blocks_of_channels(p, width).count;
  const double steps = static_cast<double>(plan.chunks > 1 ? plan.chunk_steps : mean_steps(p));
  const double scan = kLaunch + rounds_cost(RegisterShapes(), blocks, steps, machine, plan.shape);
  return plan.chunks > 1 ? scan + chain_cost(RegisterShapes(), plan) + carry_cost(p, machine, plan) : scan;
}

/// The shape and the chunks that cost least, of those that hold dstate most tightly and fit into shared memory; the
/// first shape in one chunk, if none fits. Chunks are such that their blocks come to one or some for each processor.
inline ForwardPlan best_register_plan(const ScanParams& p, const Machine& machine) {
  constexpr int64_t kMostRounds = 2;
  int first = 0;
  while (shape_facts(RegisterShapes(), first).dstate < p.dstate) ++first;
  const int dstate = shape_facts(RegisterShapes(), first).dstate;
  ForwardPlan best = register_plan(p, first, 0);
  double least = -1;
  auto consider = [&](const ForwardPlan& plan) {
    const double cost = register_cost(p, machine, plan);
    if (least < 0 || cost < least) least = cost, best = plan;
  };
  for (int shape = first; shape < RegisterShapes::kCount; ++shape) {
    const ShapeFacts facts = shape_facts(RegisterShapes(), shape);
    if (facts.dstate != dstate) break;
    if (!fits(p, machine, register_plan(p, shape, 0))) continue;
    consider(register_plan(p, shape, 0));
    if (p.cu_seqlens) continue;
    const int64_t blocks = p.sequences * blocks_of_channels(p, facts.block_channels).count;
    for (int64_t wanted = machine.processors; wanted <= kMostRounds * facts.blocks_per_processor * machine.processors;
         wanted += machine.processors) {
      if (wanted / blocks > 1) consider(register_plan(p, shape, chunk_steps(p, wanted / blocks)));
    }
  }
  return best;
}

/// Over lanes: groups such that the blocks come to about one a processor, as many slices as then fit, and not more of
/// either than shared memory holds.
inline ForwardPlan best_lane_plan(const ScanParams& p, const Machine& machine) {
  constexpr int kWarpChannels = 2;
  const int64_t wanted = ceil_div(p.sequences * p.dim, machine.processors * kWarpChannels);
  auto fits = [&](int shape) {
    return wanted <= most_groups(ForwardLaneShapes(), shape) &&
           lane_bytes(ForwardLaneShapes(), shape, p.dstate, wanted) <= machine.shared_memory;
  };
  int shape = 0;
  while (shape + 1 < ForwardLaneShapes::kCount && fits(shape + 1)) ++shape;
  const int most = most_groups(ForwardLaneShapes(), shape);
  int groups = wanted < most ? static_cast<int>(wanted) : most;
  while (groups > 1 && lane_bytes(ForwardLaneShapes(), shape, p.dstate, groups) > machine.shared_memory) --groups;
  return lane_plan(shape, groups);
}

/// Rounds of blocks, one on each processor. The first tile waits for one state after the other. What does not depend on
/// dstate counts as seven states. 16 bits take longer, and so do channels side by side.
inline double lane_cost(const ScanParams& p, const Machine& machine, const ForwardPlan& plan) {
  constexpr double kLaunch = 8600, kOfRound = 10000, kOfState = 650;
  constexpr double kOfGroup[] = {0.27, 0.27, 0.38, 0.34}, kHalf = 1.15, kChannelLast = 1.35;
  constexpr int64_t kWarpChannels = 2, kTileSteps = 256;
  const int64_t blocks = p.sequences * blocks_of_channels(p, plan.groups * kWarpChannels).count;
  const double slower = (p.activation_type == ScalarType::kFloat32 ? 1 : kHalf) *
                        (p.u.dim_stride == 1 && p.u.length_stride != 1 ? kChannelLast : 1);
  const double tile = kOfGroup[plan.shape] * plan.groups * static_cast<double>((p.dstate + 7) * kTileSteps) * slower;
  const double alone = kOfState * static_cast<double>(p.dstate), first = alone > tile ? alone : tile;
  const double later = static_cast<double>(ceil_div(mean_steps(p), kTileSteps) - 1) * tile;
  return kLaunch + static_cast<double>(ceil_div(blocks, machine.processors)) * (kOfRound + first + later);
}

/// Which may not fit: then nothing does.
inline ForwardPlan forward_plan(const ScanParams& p, const Machine& machine) {
  const ForwardPlan registers = best_register_plan(p, machine), lanes = best_lane_plan(p, machine);
  if (!fits(p, machine, lanes)) return registers;
  if (!fits(p, machine, registers)) return lanes;
  constexpr double kNearly = 1.05;  // what is kept in registers cares less about layouts
  return register_cost(p, machine, registers) <= kNearly * lane_cost(p, machine, lanes) ? registers : lanes;
}

}  // namespace mamba::kernels::cuda
