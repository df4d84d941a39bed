// Tiles of rows x 32 steps: how they lie in shared memory, and how a block's threads bring them there.
#pragma once

#include "problem.h"

namespace mamba_study {

constexpr int kTileSteps = 32;
// Rows are four words longer than the tile, which moves each row on by four of the 32 banks: eight threads that read 16
// bytes each of the same column of eight rows then meet no bank twice. Without, all would meet the same four.
constexpr int kTilePitch = kTileSteps + 4;

/// Rows of one tile, as a type that can be indexed and passed on; 16-byte aligned for the quads.
template <int rows>
struct alignas(16) TileRows {
  float values[rows][kTilePitch];

  __device__ __forceinline__ float* operator[](int row) { return values[row]; }
  __device__ __forceinline__ const float* operator[](int row) const { return values[row]; }
};

struct Quad {
  float x[4];
};

__device__ __forceinline__ Quad as_quad(const float4& from) {
  return {{from.x, from.y, from.z, from.w}};
}
__device__ __forceinline__ Quad read_quad(const float* from) {
  return as_quad(*reinterpret_cast<const float4*>(from));
}
__device__ __forceinline__ void write_quad(float* to, const Quad& quad) {
  *reinterpret_cast<float4*>(to) = make_float4(quad.x[0], quad.x[1], quad.x[2], quad.x[3]);
}

/// A thread's share of the tiles of one tensor, in quads along time or along the rows, as memory has them. Threads take
/// quads in memory's order, so a warp's loads are coalesced in either layout; store() puts them where a tile wants
/// them, which for quads along the rows is a transposition.
template <int rows, int threads>
class Fragment {
  static constexpr int kQuads = rows * kTileSteps / 4, kEach = (kQuads + threads - 1) / threads;
  // From one quad of a thread to its next: that many rows, or steps, further on.
  static constexpr int kRowJump = threads / (kTileSteps / 4), kStepJump = threads / (rows / 4);

 public:
  /// `from`: the first of `rows_there` rows of x. The direction need not be that of x: then quads are read by elements.
  __device__ Fragment(const Rows<const float>& x, const float* from, int64_t rows_there, bool along_rows)
      : along_rows_(along_rows),
        row_(along_rows ? thread() % (rows / 4) * 4 : thread() / (kTileSteps / 4)),
        step_(along_rows ? thread() / (rows / 4) : thread() % (kTileSteps / 4) * 4),
        rows_there_(rows_there),
        in_quads_(rows_there >= rows && x.quads == (along_rows ? Quads::kAlongRows : Quads::kAlongTime)),
        stride_(along_rows ? x.row_stride : x.time_stride),
        jump_(along_rows ? kStepJump * x.time_stride : kRowJump * x.row_stride),
        tile_(kTileSteps * x.time_stride),
        from_(from + row_ * x.row_stride + step_ * x.time_stride) {}

  /// Asks for the next tile, of which `steps_there` steps exist. Elsewhere it is 0: with delta = 0 a step changes no
  /// state.
  __device__ __forceinline__ void fetch(int64_t steps_there) {
    if (in_quads_ && steps_there >= kTileSteps) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (is_mine(i)) quads_[i] = as_quad(__ldg(reinterpret_cast<const float4*>(from_ + i * jump_)));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = row_of(i) + (along_rows_ ? k : 0), step = step_of(i) + (along_rows_ ? 0 : k);
          const bool exists = is_mine(i) && row < rows_there_ && step < steps_there;
          quads_[i].x[k] = exists ? __ldg(from_ + i * jump_ + k * stride_) : 0.f;
        }
      }
    }
    from_ += tile_;
  }

  __device__ __forceinline__ void multiply(const Fragment& other) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) quads_[i].x[k] *= other.quads_[i].x[k];
    }
  }

  __device__ __forceinline__ void store(TileRows<rows>& tile) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!is_mine(i)) continue;
      if (along_rows_) {
#pragma unroll
        for (int k = 0; k < 4; ++k) tile[row_of(i) + k][step_of(i)] = quads_[i].x[k];
      } else {
        write_quad(tile[row_of(i)] + step_of(i), quads_[i]);
      }
    }
  }

 private:
  static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x);
  }
  static __device__ __forceinline__ bool is_mine(int i) {
    return kQuads % threads == 0 || thread() + i * threads < kQuads;
  }
  __device__ __forceinline__ int row_of(int i) const {
    return row_ + (along_rows_ ? 0 : i * kRowJump);
  }
  __device__ __forceinline__ int step_of(int i) const {
    return step_ + (along_rows_ ? i * kStepJump : 0);
  }

  bool along_rows_;
  int row_, step_;  // of the first quad
  int64_t rows_there_;
  bool in_quads_;
  int64_t stride_, jump_, tile_;  // from one element of a quad, one quad, one tile to the next
  const float* from_;
  Quad quads_[kEach];
};

}  // namespace mamba_study
