// The activations of a warp whose lanes share out time: u, delta and z through shared memory into registers, and what
// comes of y back to global memory.
#pragma once

#include "cuda/elements.cuh"
#include "cuda/fast_math.cuh"
#include "cuda/lane_sources.cuh"

namespace mamba::kernels::cuda {

/// Moves the activations of a tile. Rows along time are moved by the warp that they belong to, whatever else by all
/// warps that work on the same tile.
template <class Tile>
class LaneActivations {
  using T = typename Tile::T;
  using Rows = typename Tile::Rows;
  using Source = TileSource<T, Tile::kSteps>;
  static constexpr int K = Tile::kLaneSteps, kChannels = Tile::kWarpChannels, kStretch = 4 * kWarpSize;
  static_assert(Tile::kSteps % kStretch == 0);

 public:
  /// `rows`: of the team's warps; `channels`: that the team has room for.
  __device__ LaneActivations(const ScanParams& p_, const typename Tile::Shared& shared, Rows* rows, int channels_,
                             const Team& team_, int barrier_)
      : p(p_),
        place(shared.place),
        sources(shared.sources),
        team_rows(rows),
        channels(channels_),
        team(team_),
        barrier(barrier_),
        access(sources.common_access(p.z.data != nullptr)) {
    const int own = team.thread % kWarpSize, row = first_row() + own;
    if (own >= kChannels) return;
    const bool exists = row < place.channels;
    warp_rows().bias[own] = exists && p.delta_bias ? static_cast<const float*>(p.delta_bias)[place.channel + row] : 0.f;
    warp_rows().D[own] = exists && p.D ? static_cast<const float*>(p.D)[place.channel + row] : 0.f;
  }

  /// Starts to copy u and delta of the tile at `inputs_from`, z of the one at `gate_from`, if there are such tiles.
  __device__ __forceinline__ void fetch(int inputs_from, int gate_from) const {
#pragma unroll 1
    for (int field = 0; field < kOut; ++field) {
      const int first_step = field == kGate ? gate_from : inputs_from;
      if (first_step >= place.steps || (field == kGate && !p.z.data)) continue;
      const Source& source = sources.at[field];
      if (access == LaneAccess::kVectors) {
        for_each_quad(source, first_step, [&](int row, int step, const T* from, bool exists) {
          copy_async_or_zeros<4 * sizeof(T)>(&warp_rows().at[field][row][skewed<T>(step)], from, exists);
        });
      } else if (access == LaneAccess::kAcross) {
        for_each_across(source, first_step, [&](int row, int step, int more, const T* from) {
          Rows& rows = team_rows[row / kChannels];
          if constexpr (kEach == 1) {
            copy_async<4>(&rows.at[field][row % kChannels][step + skewed<T>(more)], from);
          } else {
            copy_async<4>(pairs(rows, field) + step + skewed<float>(more), from);
          }
        });
      } else {
        fetch_activation(source, place, first_step, channels, team,
                         [&](int row, int step) { return place_of(field, row, step); });
      }
    }
  }
  /// After this what has been read, or written out, may be overwritten.
  __device__ __forceinline__ void release() const {
    if (access == LaneAccess::kVectors) {
      __syncwarp();
    } else {
      synchronize(barrier, team.threads);
    }
  }

  /// delta', delta' u and D u of this lane's steps. Steps beyond the last one keep the states.
  __device__ __forceinline__ void take(int first_step, float (&step)[K], float (&input)[K], float (&y)[K]) const {
    const Lane lane = this->lane();
    const float bias = warp_rows().bias[lane.row], D = warp_rows().D[lane.row];
    read(kDelta, lane, step);
    read(kInput, lane, input);
#pragma unroll
    for (int k = 0; k < K; ++k) step[k] += bias;
    if (p.delta_softplus) {
#pragma unroll
      for (int k = 0; k < K; ++k) step[k] = fast_softplus(step[k]);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      y[k] = p.D ? input[k] * D : 0.f;
      input[k] *= step[k];
    }
    if (first_step + Tile::kSteps <= place.steps) return;
    const int left = place.steps - first_step - lane.step;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (k >= left) step[k] = input[k] = 0;
    }
  }

  /// Gates y and writes it out.
  __device__ __forceinline__ void finish(int first_step, float (&y)[K]) const {
    const Lane lane = this->lane();
    if (p.z.data) {
      float z[K];
      read(kGate, lane, z);
#pragma unroll
      for (int k = 0; k < K; ++k) y[k] *= z[k] * fast_sigmoid(z[k]);
    }
    if (kEach > 1 && access == LaneAccess::kAcross) __syncwarp();  // z lies across, out along the rows
    Elements<T, K> out;
    out.narrow_from(y);
    out.store(reinterpret_cast<char*>(own(kGate, lane)));
    release();
    const Source& to = sources.at[kOut];
    if (access == LaneAccess::kVectors) {
      for_each_quad(to, first_step, [&](int row, int step, const T* where, bool exists) {
        const Word quad = *reinterpret_cast<const Word*>(&warp_rows().at[kGate][row][skewed<T>(step)]);
        if (exists) *reinterpret_cast<Word*>(const_cast<T*>(where)) = quad;
      });
    } else if (access == LaneAccess::kAcross) {
      for_each_across(to, first_step, [&](int row, int step, int more, const T* where) {
        const T* from = &team_rows[row / kChannels].at[kGate][row % kChannels][step + skewed<T>(more)];
        if constexpr (kEach == 1) {
          *const_cast<T*>(where) = *from;
        } else {
          const uint32_t pair = from[0].bits | static_cast<uint32_t>(from[Rows::kPitch].bits) << 16;
          *reinterpret_cast<uint32_t*>(const_cast<T*>(where)) = pair;
        }
      });
    } else {
      store_elements(to, first_step);
    }
  }

 private:
  using Word = typename Quad<T>::Word;
  static constexpr int kEach = 4 / static_cast<int>(sizeof(T));  // channels side by side that make 4 bytes
  static_assert(kEach == 1 || kEach == kChannels);

  /// What a thread has of its warp's tile.
  struct Lane {
    int row, step;
  };
  /// Hidden from the compiler, which else keeps all that follows from it in registers from tile to tile.
  __device__ __forceinline__ int thread() const {
    int x = team.thread;
    keep(x);
    return x;
  }
  __device__ __forceinline__ Lane lane() const {
    const int lane = thread() % kWarpSize;
    return {lane % kChannels, lane / kChannels * K};
  }
  __device__ __forceinline__ int first_row() const {
    return thread() / kWarpSize * kChannels;
  }
  __device__ __forceinline__ Rows& warp_rows() const {
    return team_rows[thread() / kWarpSize];
  }
  __device__ __forceinline__ T* own(int field, const Lane& lane) const {
    return &warp_rows().at[field][lane.row][skewed<T>(lane.step)];
  }
  __device__ __forceinline__ T* place_of(int field, int row, int step) const {
    return &team_rows[row / kChannels].at[field][row % kChannels][skewed<T>(step)];
  }
  /// Where the channels of 16 bits of a warp lie side by side, a pair for each step.
  static __device__ __forceinline__ uint32_t* pairs(Rows& rows, int field) {
    return reinterpret_cast<uint32_t*>(&rows.at[field][0][0]);
  }

  __device__ __forceinline__ void read(int field, const Lane& lane, float (&x)[K]) const {
    if constexpr (kEach > 1) {
      if (access == LaneAccess::kAcross) {
        Elements<float, K> words;
        words.load(reinterpret_cast<const char*>(pairs(warp_rows(), field) + skewed<float>(lane.step)));
        uint32_t pair[K];
        memcpy(pair, words.words, sizeof(pair));
#pragma unroll
        for (int k = 0; k < K; ++k) {
          T element;
          element.bits = static_cast<uint16_t>(pair[k] >> (16 * lane.row));
          x[k] = widen(element);
        }
        return;
      }
    }
    Elements<T, K> elements;
    elements.load(reinterpret_cast<const char*>(own(field, lane)));
    elements.widen_into(x);
  }

  /// Calls f(row, step, place in global memory, whether it exists) for this lane's quads of its warp's rows: lane after
  /// lane along time.
  template <class F>
  __device__ __forceinline__ void for_each_quad(const Source& source, int first_step, F&& f) const {
    const int first_row = this->first_row(), column = thread() % kWarpSize * 4;
    const int left = place.steps - first_step - column, rows_left = place.channels - first_row;
    const int64_t stride = source.row_stride;
    const T* at = source.origin + first_row * stride + (first_step + column);
#pragma unroll
    for (int row = 0; row < kChannels; ++row, at += stride) {
#pragma unroll
      for (int step = 0; step < Tile::kSteps; step += kStretch) {
        f(row, column + step, at + step, row < rows_left && step < left);
      }
    }
  }

  /// Calls f(row, step, more, place in global memory) for this thread's elements, or pairs of channels, of the team's
  /// rows, thread after thread along channels. They are at the step `step` + `more`, of which `more` is known when the
  /// kernel is compiled and skewed() counts for both.
  template <class F>
  __device__ __forceinline__ void for_each_across(const Source& source, int first_step, F&& f) const {
    constexpr int kAtOnce = Tile::kLanes * kEach;
    static_assert(32 % kAtOnce == 0);
    const int thread = this->thread(), columns = channels / kEach;
    const int row = thread % columns * kEach, step = thread / columns, left = place.steps - first_step - step;
    if (row >= place.channels) return;
    const int64_t stride = source.step_stride;
    const T* at = source.origin + row + (first_step + step) * stride;
#pragma unroll
    for (int more = 0; more < Tile::kSteps; more += kAtOnce, at += kAtOnce * stride) {
      if (more < left) f(row, step, more, at);
    }
  }

  __device__ __forceinline__ void store_elements(const Source& source, int first_step) const {
    const Source to = source;
    const int next_row = to.along_time ? 0 : 1, next_step = 1 - next_row;
    to.for_each_quad(channels, team, 0, place.channels, first_step, place.steps - first_step,
                     [&](int, const auto& corner, const T* where, int left) {
                       T out[4] = {};
#pragma unroll
                       for (int i = 0; i < 4; ++i) {
                         const int row = corner.row + i * next_row, step = corner.step + i * next_step;
                         if (i < left) out[i] = *place_of(kGate, row, step);
                       }
                       if (left > 0) to.access.store(const_cast<T*>(where), Quad<T>::of(out), left);
                     });
  }

  const ScanParams& p;
  const Place& place;
  const LaneSources<T, Tile::kSteps>& sources;
  Rows* const team_rows;
  const int channels;
  const Team team;
  const int barrier;
  const LaneAccess access;
};

}  // namespace mamba::kernels::cuda
