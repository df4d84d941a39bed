// What a chunk of time adds to the adjoint of the state before it, for a backward whose few channels are cut into
// chunks. From an adjoint of 0 after the chunk no recurrence is needed:
//
//   r = sum over the chunk's steps t of exp(A s_t) C_t dy_t,   s_t the sum of delta' from the chunk's first step to t
//
// and by exp(A s) of the whole chunk decays what comes from later chunks. Lanes share out time, 8 steps of two
// neighbouring channels each. A state whose decay has reached 0 is left out for the rest of the chunk: 0 times
// whatever is finite. So that NaN and infinity reach what they must, and states may grow, chunks with such values go
// through the recurrence, step by step.
#pragma once

#include "cuda/adjoint_carry_lane.cuh"
#include "cuda/launch.h"

namespace mamba::kernels::cuda {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2) adjoint_carry_kernel(const __grid_constant__ CarryTask task) {
  auto& shared = shared_memory<typename Tile::Shared>();
  const ScanParams& p = task.grad.scan;
  const int64_t block = blockIdx.x % task.blocks.count, rest = blockIdx.x / task.blocks.count;
  const int groups = static_cast<int>(ceil_div(p.dstate, Tile::kStates));
  const int first_state = static_cast<int>(rest % groups) * Tile::kStates;
  const int chunk = static_cast<int>(rest / groups % (task.chunks - 1)) + 1;  // nothing asks for the first one
  if (threadIdx.x == 0) {
    const Place place(p, task.blocks, rest / groups / (task.chunks - 1) * task.blocks.count + block);
    shared.place = place;
    shared.C_source = typename Tile::Source(p.C, p.dim, p.dstate, place);
    shared.delta = typename Tile::Plane(p.delta, place);
    shared.z = typename Tile::Plane(p.z, place);
    shared.dout = typename Tile::Plane(task.grad.dout, place);
  }
  __syncthreads();
  const int left_states = static_cast<int>(p.dstate) - first_state;
  const int states = left_states < Tile::kStates ? left_states : Tile::kStates;
  const int begin = chunk * task.chunk_steps, left = shared.place.steps - begin;
  const int end = left < task.chunk_steps ? shared.place.steps : begin + task.chunk_steps;
  AdjointCarry<Tile> carry(task.grad, shared, first_state);
  auto fetch_C = [&](int buffer, int first) {
    shared.C_source.fetch_best(shared.C[buffer], shared.C_under_way, first_state, states, first, end - first,
                               Tile::kThreads);
  };
  carry.fetch(begin, end);
  fetch_C(0, begin);
  int buffer = 0;
#pragma unroll 1
  for (int first = begin; first < end; first += Tile::kSteps, buffer ^= 1) {
    carry.begin_tile(first, end);
    copies_arrived();
    shared.C_source.widen_best(shared.C[buffer], shared.C_under_way, Tile::kThreads);
    __syncthreads();  // C is there, and nobody reads the other buffer
    if (first + Tile::kSteps < end) fetch_C(buffer ^ 1, first + Tile::kSteps);
    carry.inspect(shared.C[buffer], states);
    carry.sweep(shared.C[buffer], states);
    if (first + Tile::kSteps < end) carry.fetch(first + Tile::kSteps, end);
  }
  carry.store(task, shared.place.sequence_index * task.chunks + chunk, begin, end);
}

template <class T>
Error adjoint_carries(const CarryTask& carries, CUstream_st* stream) {
  CarryTask task = carries;
  const ScanParams& p = task.grad.scan;
  task.blocks = blocks_of_channels(p, CarryShape::kBlockChannels);
  return with_pair_access(pair_access(task.grad, task.blocks), [&](auto access) {
    using Tile = CarryTile<T, decltype(access)::value>;
    const int64_t blocks = p.sequences * (task.chunks - 1) * ceil_div(p.dstate, Tile::kStates) * task.blocks.count;
    return launch(adjoint_carry_kernel<Tile>, blocks, Tile::kThreads, sizeof(typename Tile::Shared), stream, task);
  });
}

}  // namespace mamba::kernels::cuda
