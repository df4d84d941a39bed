// B and C of one tile of steps in shared memory, double buffered: while one tile is read, copies into the other are
// under way.
#pragma once

#include "cuda/coefficient_source.cuh"

namespace mamba::kernels::cuda {

template <class Tile>
struct CoefficientStage;

/// The quads that one thread copies of a tile, where both sources are simple and a row is a whole number of stretches
/// of a warp's quads: the warps take turns.
template <class Tile>
class WarpQuads {
  using T = typename Tile::T;
  static constexpr int kStretch = 4 * kWarpSize, kPerRow = Tile::kSteps / kStretch;

 public:
  static constexpr bool kIsPossible = Tile::kSteps % kStretch == 0;

  __device__ __forceinline__ explicit WarpQuads(int threads)
      : warp(threadIdx.x / kWarpSize),
        warps(static_cast<unsigned>(threads) / kWarpSize),
        column(static_cast<int>(threadIdx.x) % kWarpSize * 4) {}

  __device__ __forceinline__ void fetch(CoefficientStage<Tile>& stage, int buffer, int first_state, int states,
                                        int first_step, int steps) const {
    const T *B = stage.B.at(first_state, first_step), *C = stage.C.at(first_state, first_step);
    const int B_stride = stage.B.near_stride(), C_stride = stage.C.near_stride();
    Tile& tile = stage.tile[buffer];
    for_each_quad([&](int row, int step) {
      const bool exists = row < states && step < steps;
      CoefficientSource<Tile>::copy_vector(tile.B, stage.B_under_way, row, step, exists,
                                           B + (static_cast<int64_t>(row) * B_stride + step));
      CoefficientSource<Tile>::copy_vector(tile.C, stage.C_under_way, row, step, exists,
                                           C + (static_cast<int64_t>(row) * C_stride + step));
    });
  }
  __device__ __forceinline__ void widen_arrived(CoefficientStage<Tile>& stage, int buffer) const {
    for_each_quad([&](int row, int step) {
      CoefficientSource<Tile>::widen_vector(stage.tile[buffer].B, stage.B_under_way, row, step);
      CoefficientSource<Tile>::widen_vector(stage.tile[buffer].C, stage.C_under_way, row, step);
    });
  }

 private:
  template <class F>
  __device__ __forceinline__ void for_each_quad(F&& f) const {
#pragma unroll 2
    for (unsigned i = warp; i < Tile::kStates * kPerRow; i += warps) {
      f(static_cast<int>(i / kPerRow), static_cast<int>(i % kPerRow) * kStretch + column);
    }
  }

  const unsigned warp, warps;
  const int column;
};

/// The quads that one of a block's kThreads threads copies of a tile, where both sources are simple: those of its
/// column, kAtOnce rows apart. All but the addresses is known when the kernel is compiled.
template <class Tile, int kThreads>
class BlockQuads {
  using T = typename Tile::T;
  static constexpr int kPerRow = Tile::kSteps / 4, kAtOnce = kThreads / kPerRow;
  static_assert(kThreads % kPerRow == 0);

 public:
  __device__ __forceinline__ BlockQuads()
      : row(static_cast<int>(threadIdx.x) / kPerRow), step(static_cast<int>(threadIdx.x) % kPerRow * 4) {}

  __device__ __forceinline__ void fetch(CoefficientStage<Tile>& stage, int buffer, int first_state, int states,
                                        int first_step, int steps) const {
    const T* from_B = stage.B.at(first_state + row, first_step + step);
    const T* from_C = stage.C.at(first_state + row, first_step + step);
    for_each_row([&](int i) {
      const bool exists = row + i < states && step < steps;
      Tile& tile = stage.tile[buffer];
      CoefficientSource<Tile>::copy_vector(tile.B, stage.B_under_way, row + i, step, exists, from_B);
      CoefficientSource<Tile>::copy_vector(tile.C, stage.C_under_way, row + i, step, exists, from_C);
      if (i + kAtOnce < Tile::kStates) {
        from_B = stage.B.next_row(from_B, kAtOnce);
        from_C = stage.C.next_row(from_C, kAtOnce);
      }
    });
  }
  __device__ __forceinline__ void widen_arrived(CoefficientStage<Tile>& stage, int buffer) const {
    for_each_row([&](int i) {
      CoefficientSource<Tile>::widen_vector(stage.tile[buffer].B, stage.B_under_way, row + i, step);
      CoefficientSource<Tile>::widen_vector(stage.tile[buffer].C, stage.C_under_way, row + i, step);
    });
  }

 private:
  template <class F>
  __device__ __forceinline__ void for_each_row(F&& f) const {
#pragma unroll
    for (int i = 0; i < Tile::kStates; i += kAtOnce) {
      if (Tile::kStates % kAtOnce == 0 || row + i < Tile::kStates) f(i);
    }
  }

  const int row, step;
};

/// The shared memory of the two tiles and what the block knows about their sources.
template <class Tile>
struct CoefficientStage {
  using Source = CoefficientSource<Tile>;

  Tile tile[2];
  typename Source::UnderWay B_under_way, C_under_way;
  Source B, C;
  bool are_simple;

  /// By one thread, before a barrier.
  __device__ void set_sources(const ScanParams& p, const Place& place) {
    B = Source(p.B, p.dim, p.dstate, place);
    C = Source(p.C, p.dim, p.dstate, place);
    are_simple = B.is_simple() && C.is_simple() && B.is_near() && C.is_near();
  }

  /// Starts to copy `states` rows from `first_state` on and `steps` columns from `first_step` on; zeros beyond them.
  __device__ __forceinline__ void fetch(int buffer, int first_state, int states, int first_step, int steps,
                                        int threads) {
    if constexpr (WarpQuads<Tile>::kIsPossible) {
      if (are_simple) return WarpQuads<Tile>(threads).fetch(*this, buffer, first_state, states, first_step, steps);
    }
    B.fetch_best(tile[buffer].B, B_under_way, first_state, states, first_step, steps, threads);
    C.fetch_best(tile[buffer].C, C_under_way, first_state, states, first_step, steps, threads);
  }
  /// By the threads that fetched; what they fetched is there for the others after the next barrier.
  __device__ __forceinline__ void arrive(int buffer, int threads) {
    copies_arrived();
    if constexpr (WarpQuads<Tile>::kIsPossible) {
      if (are_simple) return WarpQuads<Tile>(threads).widen_arrived(*this, buffer);
    }
    B.widen_best(tile[buffer].B, B_under_way, threads);
    C.widen_best(tile[buffer].C, C_under_way, threads);
  }

  /// The same by blocks whose number of threads is known when the kernel is compiled.
  template <int kThreads>
  __device__ __forceinline__ void fetch(int buffer, int first_state, int states, int first_step, int steps) {
    if (are_simple) {
      BlockQuads<Tile, kThreads>().fetch(*this, buffer, first_state, states, first_step, steps);
    } else {
      B.fetch(tile[buffer].B, B_under_way, first_state, states, first_step, steps, kThreads);
      C.fetch(tile[buffer].C, C_under_way, first_state, states, first_step, steps, kThreads);
    }
  }
  template <int kThreads>
  __device__ __forceinline__ void arrive(int buffer) {
    copies_arrived();
    if (are_simple) {
      BlockQuads<Tile, kThreads>().widen_arrived(*this, buffer);
    } else {
      B.widen_arrived(tile[buffer].B, B_under_way, kThreads);
      C.widen_arrived(tile[buffer].C, C_under_way, kThreads);
    }
  }
};

}  // namespace mamba::kernels::cuda
