// What a chunk of time does to the state that enters it, for a scan whose few channels are cut into chunks that run at
// once. From a state of 0 before the chunk no recurrence is needed:
//
//   h = sum over the chunk's steps t of exp(A s_t) B_t delta'_t u_t,   s_t the sum of delta' after t up to the last
//   step
//
// and for the adjoint, whose time runs backwards,
//
//   r = sum over the chunk's steps t of exp(A s_t) C_t dy_t,   s_t the sum of delta' from the chunk's first step to t
//
// and by exp(A s) of the whole chunk decays what comes from the chunks before it. Tiles go by from the end that the
// sums begin at. Lanes share out time, 8 steps of two neighbouring channels each. A state whose decay has reached 0 is
// left out for the rest of the chunk: 0 times whatever is finite. So that NaN and infinity reach what they must, and
// states may grow, chunks with such values go through the recurrence, step by step.
#pragma once

#include "cuda/chunk_carry_lane.cuh"
#include "cuda/launch.h"

namespace mamba::kernels::cuda {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2) chunk_carry_kernel(const __grid_constant__ CarryTask task) {
  constexpr bool kIsAdjoint = Tile::kIsAdjoint;
  auto& shared = shared_memory<typename Tile::Shared>();
  const ScanParams& p = task.scan;
  const int64_t block = blockIdx.x % task.blocks.count, rest = blockIdx.x / task.blocks.count;
  const int groups = static_cast<int>(ceil_div(p.dstate, Tile::kStates));
  const int first_state = static_cast<int>(rest % groups) * Tile::kStates;
  const int chunk = static_cast<int>(rest / groups % (task.chunks - 1)) + kIsAdjoint;  // nobody follows the last one
  if (threadIdx.x == 0) {
    Place place(p, task.blocks, rest / groups / (task.chunks - 1) * task.blocks.count + block, FewDivisions());
    place.enter_chunk(chunk, task.chunk_steps);
    shared.place = place;
    shared.source = typename Tile::Source(kIsAdjoint ? p.C : p.B, p.dim, p.dstate, place, FewDivisions());
    shared.delta = typename Tile::Plane(p.delta, place);
    shared.value = typename Tile::Plane(kIsAdjoint ? task.dout : p.u, place);
    if (kIsAdjoint) shared.z = typename Tile::Plane(p.z, place);
  }
  __syncthreads();
  const int left_states = static_cast<int>(p.dstate) - first_state, steps = shared.place.steps;
  const int states = left_states < Tile::kStates ? left_states : Tile::kStates;
  ChunkCarry<Tile> carry(p, shared, first_state);
  auto fetch_factors = [&](int buffer, int first) {
    shared.source.fetch_best(shared.factors[buffer], shared.under_way, first_state, states, first, steps - first,
                             Tile::kThreads);
  };
  int tiles = (steps + Tile::kSteps - 1) / Tile::kSteps, first = kIsAdjoint ? 0 : (tiles - 1) * Tile::kSteps;
  carry.fetch(first);
  fetch_factors(0, first);
#pragma unroll 1
  for (int buffer = 0; tiles > 0; --tiles, buffer ^= 1) {
    const int next = kIsAdjoint ? first + Tile::kSteps : first - Tile::kSteps;
    carry.begin_tile(first);
    copies_arrived();
    shared.source.widen_best(shared.factors[buffer], shared.under_way, Tile::kThreads);
    __syncthreads();  // the factors are there, and nobody reads the other buffer
    if (tiles > 1) fetch_factors(buffer ^ 1, next);
    carry.inspect(shared.factors[buffer], states);
    carry.sweep(shared.factors[buffer], states);
    if (tiles > 1) carry.fetch(next);
    first = next;
  }
  carry.store(task, shared.place.sequence_index * task.chunks + chunk);
}

template <class T, bool is_adjoint>
Error chunk_carries(const CarryTask& carries, CUstream_st* stream) {
  CarryTask task = carries;
  const ScanParams& p = task.scan;
  task.blocks = blocks_of_channels(p, CarryShape::kBlockChannels);
  const PairAccess best = is_adjoint ? pair_access(p, task.blocks, {&p.delta, &p.z, &task.dout})
                                     : pair_access(p, task.blocks, {&p.delta, &p.u});
  return with_pair_access(best, [&](auto access) {
    using Tile = CarryTile<T, decltype(access)::value, is_adjoint>;
    const int64_t blocks = p.sequences * (task.chunks - 1) * ceil_div(p.dstate, Tile::kStates) * task.blocks.count;
    return launch(chunk_carry_kernel<Tile>, blocks, Tile::kThreads, sizeof(typename Tile::Shared), stream, task);
  });
}

}  // namespace mamba::kernels::cuda
