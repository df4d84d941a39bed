// B and C of one tile of steps in shared memory, double buffered: while one tile is read, copies into the other are
// under way.
#pragma once

#include "cuda/coefficient_source.cuh"

namespace mamba::kernels::cuda {

template <class Tile>
struct CoefficientStage;

/// The rows that one warp copies of a tile, where both sources are simple: the warps of a team take turns at the rows
/// of B, then of C.
template <class Tile>
class WarpRows {
  using T = typename Tile::T;
  static constexpr int kStretch = 4 * kWarpSize, kStates = Tile::kStates;

 public:
  static constexpr bool kIsPossible = Tile::kSteps % kStretch == 0;

  __device__ __forceinline__ explicit WarpRows(const Team& team)
      : warp(static_cast<unsigned>(team.thread) / kWarpSize),
        warps(static_cast<unsigned>(team.threads) / kWarpSize),
        column(static_cast<unsigned>(team.thread) % kWarpSize * 4) {}

  __device__ __forceinline__ void fetch(CoefficientStage<Tile>& stage, int buffer, int first_state, int states,
                                        int first_step, int steps) const {
    const int left = steps - static_cast<int>(column);
    for_each_row([&](unsigned row, bool is_C) {
      auto& source = is_C ? stage.C : stage.B;
      const T* from =
          source.near_at(static_cast<unsigned>(first_state) + row, static_cast<unsigned>(first_step) + column);
      const int row_left = static_cast<int>(row) < states ? left : 0;
#pragma unroll
      for (unsigned step = 0; step < Tile::kSteps; step += kStretch) {
        const bool exists = static_cast<int>(step) < row_left;
        if constexpr (sizeof(T) == 4) {
          copy_async_or_zeros<16>(place(stage.tile[buffer], row, step, is_C), from + step, exists);
        } else {
          copy_async_or_zeros<8>(under_way(stage, row, step, is_C), from + step, exists);
        }
      }
    });
  }
  __device__ __forceinline__ void widen_arrived(CoefficientStage<Tile>& stage, int buffer) const {
    if constexpr (sizeof(T) != 4) {
      for_each_row([&](unsigned row, bool is_C) {
#pragma unroll
        for (unsigned step = 0; step < Tile::kSteps; step += kStretch) {
          float x[4];
          under_way(stage, row, step, is_C)->widen_into(x);
          store_float4(place(stage.tile[buffer], row, step, is_C), x);
        }
      });
    }
  }

 private:
  template <class F>
  __device__ __forceinline__ void for_each_row(F&& f) const {
#pragma unroll 1
    for (unsigned i = warp; i < 2 * kStates; i += warps) {
      const bool is_C = i >= kStates;
      f(is_C ? i - kStates : i, is_C);
    }
  }
  /// Where this lane's quad of a stretch goes; stretches are multiples of what rows are skewed by.
  __device__ __forceinline__ float* place(Tile& tile, unsigned row, unsigned step, bool is_C) const {
    static_assert(kStretch % 32 == 0);
    float* rows = is_C ? &tile.C[0][0] : &tile.B[0][0];
    return rows + (row * Tile::kPitch + (column + column / 32 * (Tile::column(32) - 32))) + Tile::column(step);
  }
  __device__ __forceinline__ Quad<T>* under_way(CoefficientStage<Tile>& stage, unsigned row, unsigned step,
                                                bool is_C) const {
    return &(is_C ? stage.C_under_way : stage.B_under_way).at[(row * Tile::kSteps + column) / 4] + step / 4;
  }

  const unsigned warp, warps, column;
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
  __device__ void set_sources(const ScanParams& p, const Place& place, FewDivisions few_divisions) {
    B = Source(p.B, p.dim, p.dstate, place, few_divisions);
    C = Source(p.C, p.dim, p.dstate, place, few_divisions);
    are_simple = B.is_simple() && C.is_simple() && B.is_near() && C.is_near();
  }

  /// Starts to copy `states` rows from `first_state` on and `steps` columns from `first_step` on; zeros beyond them.
  __device__ __forceinline__ void fetch(int buffer, int first_state, int states, int first_step, int steps,
                                        const Team& team) {
    if constexpr (WarpRows<Tile>::kIsPossible) {
      if (are_simple) return WarpRows<Tile>(team).fetch(*this, buffer, first_state, states, first_step, steps);
    }
    B.fetch_best(tile[buffer].B, B_under_way, first_state, states, first_step, steps, team);
    C.fetch_best(tile[buffer].C, C_under_way, first_state, states, first_step, steps, team);
  }
  /// By the threads that fetched; what they fetched is there for the others after the next barrier.
  __device__ __forceinline__ void arrive(int buffer, const Team& team) {
    copies_arrived();
    if constexpr (WarpRows<Tile>::kIsPossible) {
      if (are_simple) return WarpRows<Tile>(team).widen_arrived(*this, buffer);
    }
    B.widen_best(tile[buffer].B, B_under_way, team);
    C.widen_best(tile[buffer].C, C_under_way, team);
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
