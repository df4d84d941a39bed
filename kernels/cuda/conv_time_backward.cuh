// The convolution's adjoint along time, in the windows of the forward. dx needs dpre of later steps, so that the rounds
// of a window go from last to first.
#pragma once

#include "cuda/conv_gradient.cuh"
#include "cuda/conv_time.cuh"

namespace mamba::kernels::cuda {

/// Starts to copy the first `bytes` of 16 aligned ones from global into shared memory; the rest become 0.
__device__ __forceinline__ void copy_async_part(void* shared, const void* global, int bytes) {
#if __CUDA_ARCH__ >= 800
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
#else
  uint16_t parts[8];
  for (int i = 0; i < 8; ++i) parts[i] = 2 * i < bytes ? static_cast<const uint16_t*>(global)[i] : uint16_t{0};
  memcpy(shared, parts, sizeof(parts));
#endif
}
/// Closes a group of copies, and waits for all groups but the latest.
__device__ __forceinline__ void copies_asked() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
__device__ __forceinline__ void copies_arrived_but_latest() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
}

/// What a warp reads of its window, in shared memory: all of it is on its way before anything is used, and holds no
/// registers. kByVector: 16 bytes of x and dout are aligned.
template <class T, int kVector, int kSteps, bool kByVector>
struct WindowStage {
  static constexpr int kRound = kVector * kWarpSize;

  alignas(16) T x[kVector + kSteps];  // from kVector steps before the window on
  alignas(16) T dout[kSteps];

  __device__ __forceinline__ T* x_at(int time) { return x + kVector + time; }

  __device__ __forceinline__ void ask(const ConvWindow& window, const T* from_x, const T* from_dout, int round,
                                      int lane) {
    if constexpr (kByVector) {
      const int time = round * kRound + lane * kVector, left = window.length - time;
      const int bytes = left >= kVector ? 16 : left > 0 ? left * static_cast<int>(sizeof(T)) : 0;
      copy_async_part(x_at(time), bytes > 0 ? from_x + time : from_x, bytes);
      copy_async_part(dout + time, bytes > 0 ? from_dout + time : from_dout, bytes);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int time = round * kRound + i * kWarpSize + lane;
        *x_at(time) = time < window.length ? from_x[time] : T();
        dout[time] = time < window.length ? from_dout[time] : T();
      }
    }
  }
  /// The steps before the window. Those before a row that is one sequence are its initial state.
  __device__ __forceinline__ void ask_before(const ConvParams& p, const ConvWindow& window, const T* from_x, int width,
                                             bool is_one_sequence, int lane) {
    const int time = lane - kConvHalo, at = time + width - 1;
    if (time >= 0) return;
    const Line<const T> state(p.initial_state, window.batch, window.channel, 0);
    const bool has_state = is_one_sequence && state.first && at >= 0;
    *x_at(time) = window.begin > 0 ? from_x[time] : has_state ? state[at] : T();
  }

  /// kConvHalo steps before the lane's own, and these.
  __device__ __forceinline__ void widen_x(int time, float (&to)[kConvHalo + kVector]) {
    constexpr int kBefore = 4;
    Elements<T, kBefore> before;
    Elements<T, kVector> own;
    float early[kBefore], late[kVector];
    before.load(reinterpret_cast<const char*>(x_at(time - kBefore)));
    own.load(reinterpret_cast<const char*>(x_at(time)));
    before.widen_into(early);
    own.widen_into(late);
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) to[i] = early[kBefore - kConvHalo + i];
#pragma unroll
    for (int i = 0; i < kVector; ++i) to[kConvHalo + i] = late[i];
  }
  __device__ __forceinline__ void widen_dout(int time, float (&to)[kVector]) {
    Elements<T, kVector> own;
    own.load(reinterpret_cast<const char*>(dout + time));
    own.widen_into(to);
  }

  /// Stores a round of dx. By elements it goes through dout, which nobody needs any more.
  __device__ __forceinline__ void store(const ConvWindow& window, T* dx, int round, int lane,
                                        const float (&values)[kVector]) {
    if constexpr (kByVector) {
      store_round(dx, window, round * kRound, lane * kVector, false, values);
    } else {
      Elements<T, kVector> elements;
      elements.narrow_from(values);
      elements.store(reinterpret_cast<char*>(dout + round * kRound + lane * kVector));
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int time = round * kRound + i * kWarpSize + lane;
        if (time < window.length) dx[time] = dout[time];
      }
    }
  }
};

/// Results at the bounds of sequences, from what each of them has seen alone: dx of kConvHalo steps before and after a
/// bound, dinitial_state of the sequence that begins there, and what its first steps add to the sums. Lanes have dpre
/// of a step each, from kConvHalo before the bound on.
template <class T>
struct AtBound {
  static constexpr int kLanes = 16, kFirst = kConvHalo, kOfDx = 2 * kConvHalo, kOfDpre = 3 * kConvHalo;

  const ConvGradParams& g;
  const ConvWindow& window;
  const Taps& taps;
  int width, steps;  // of the window

  __device__ __forceinline__ void store(int64_t bound, int step, int i, TapSums* sums) const {
    const ConvParams& p = g.conv;
    const int64_t sequences = conv_row_sequences(p), index = i < kFirst ? bound - 1 : bound;
    const int time = step - kFirst + i;
    const bool is_near = step > -kFirst && step < steps + kFirst, is_mine = time >= 0 && time < steps;
    const int next = is_near && bound < sequences ? ConvBounds::at(p, window, bound + 1) : step;
    const int start = i >= kFirst || !is_near ? step : bound > 0 ? ConvBounds::at(p, window, bound - 1) : kConvFar;
    const int stop = i < kFirst ? step : next;
    const bool exists = is_near && i < kOfDpre && time >= start && time < stop;
    const T* const x = window.of<const T>(p.x);
    float seen[kConvTaps], dpre = exists ? widen(window.of<const T>(g.dout)[time]) : 0;
    load_seen(p, window, x, p.cu_seqlens ? index : window.batch, start, time, exists, seen);
    if (p.silu) dpre *= generic::activated_slope(taps.pre(width, [&](int j) { return seen[kConvHalo - j]; }));
    if (!exists) dpre = 0;
    if (sums && exists && is_mine && i >= kFirst && i < kOfDx) sums->add_step(width, dpre, seen + kConvHalo);
    float dx = 0, dinitial = 0;  // of steps before the bound, dinitial_state
#pragma unroll
    for (int j = kConvHalo; j >= 0; --j) {
      const float later = __shfl_down_sync(kWholeWarp, dpre, static_cast<unsigned>(j), kLanes);
      if (j >= width) continue;
      const bool is_after = i + j >= kFirst;
      if (i >= kFirst || !is_after) dx = generic::tap(dx, taps.weight[j], later);
      if (is_after) dinitial = generic::tap(dinitial, taps.weight[j], later);
    }
    const auto dlast = [&](int64_t of, int its_stop) {
      const int at = time - its_stop + width - 1;
      const Line<const T> line(g.dlast_state, p.cu_seqlens ? of : window.batch, window.channel, 0);
      return line.first && at >= 0 && time < its_stop ? widen(line[at]) : 0;
    };
    if (g.dx.data && exists && is_mine && i < kOfDx) {
      narrow_into(dx + dlast(index, stop), window.of<T>(g.dx) + time);
    }
    const int element = i - kFirst + width - 1;
    const bool is_owned = step >= 0 && step < (window.length <= steps ? window.length + 1 : steps);
    if (g.dinitial_state.data && bound < sequences && is_owned && i < kFirst && element >= 0) {
      const Line<T> to(g.dinitial_state, p.cu_seqlens ? bound : window.batch, window.channel, 0);
      narrow_into(dinitial + dlast(bound, next), &to[element]);
    }
  }
};

/// kOneSequence: rows are not packed, which spares the search for bounds.
template <class T, int kWidth, bool kOneSequence, bool kByVector>
__global__ void __launch_bounds__(kConvThreads, 6)
    conv_time_backward_kernel(const __grid_constant__ ConvGradTask task) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T)), kRound = kVector * kWarpSize;
  constexpr int kRounds = conv_rounds(true), kSteps = kRounds * kRound, kLater = kRounds / 2;
  using Stage = WindowStage<T, kVector, kSteps, kByVector>;
  __shared__ Stage stages[ConvWindow::kWarps];
  const ConvGradParams& g = task.grad;
  const ConvParams& p = g.conv;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, width = width_of<kWidth>(p);
  const ConvWindow window = ConvWindow::of_warp(p, task.tiles);
  if (window.channel >= p.dim) return;
  Stage& stage = stages[threadIdx.x / kWarpSize];
  const T* const x = window.of<const T>(p.x);
  const T* const dout = window.of<const T>(g.dout);
  T* const dx = g.dx.data ? window.of<T>(g.dx) : nullptr;
  const int rounds = window.length >= kSteps ? kRounds : (window.length + kRound - 1) / kRound;

  // In two parts: the later rounds, with the one before them, are worked on while the earlier ones arrive.
#pragma unroll
  for (int round = kRounds - 1; round >= 0; --round) {
    if (round == kLater - 2) copies_asked();
    if (round < rounds) stage.ask(window, x, dout, round, lane);
  }
  copies_asked();
  stage.ask_before(p, window, x, width, kOneSequence, lane);
  Taps taps;
  taps.load(p, width, window.channel);
  [[maybe_unused]] ConvBounds bounds;
  if constexpr (!kOneSequence) bounds = ConvBounds(p, window, kSteps, lane);
  float next[kConvHalo] = {};  // dpre of the first lane in the round behind
  if (window.length > kSteps) {
    float behind = 0;
    const int time = kSteps + lane;
    if (lane < kConvHalo && time < window.length) {
      behind = widen(dout[time]);
      if (p.silu) behind *= generic::activated_slope(taps.pre(width, [&](int j) { return widen(x[time - j]); }));
    }
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) next[i] = __shfl_sync(kWholeWarp, behind, i);
  }
  TapSums sums;
#pragma unroll 1
  for (int round = rounds - 1; round >= 0; --round) {
    if (round < kLater) {
      copies_arrived();
    } else {
      copies_arrived_but_latest();
    }
    __syncwarp();
    const int begin = round * kRound, time = begin + lane * kVector;
    const bool is_whole = begin + kRound <= window.length;
    float seen[kConvHalo + kVector], values[kVector], dpre[kVector + kConvHalo];
    stage.widen_x(time, seen);
    stage.widen_dout(time, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) dpre[i] = values[i];
    if (p.silu) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        dpre[i] *= generic::activated_slope(taps.pre(width, [&](int j) { return seen[kConvHalo + i - j]; }));
      }
    }
    if (is_whole && (kOneSequence || !bounds.meets(begin, begin + kRound))) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums.add_step(width, dpre[i], seen + kConvHalo + i);
    } else {
      unsigned left_out = 0;  // steps that add to the sums later, or are none
      if constexpr (!kOneSequence) left_out = bounds.template met<kVector>(p, window, time, begin + kRound, lane);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (time + i >= window.length) dpre[i] = 0;
        if (time + i < window.length && !(left_out >> i & 1)) sums.add_step(width, dpre[i], seen + kConvHalo + i);
      }
    }
    // Later steps: of the next lane, or of the first one in the round behind.
#pragma unroll
    for (int i = 0; i < kConvHalo; ++i) {
      dpre[kVector + i] = __shfl_sync(kWholeWarp, lane == 0 ? next[i] : dpre[i], (lane + 1) % kWarpSize);
      next[i] = dpre[i];
    }
    if (!dx) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = 0;
#pragma unroll
      for (int j = kConvHalo; j >= 0; --j) {
        if (j < width) values[i] = generic::tap(values[i], taps.weight[j], dpre[i + j]);
      }
    }
    if (!kOneSequence && bounds.crosses(begin, begin + kRound)) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = bounds.has(time + i) ? values[i] : 0;
    }
    stage.store(window, dx, round, lane, values);
  }

  const AtBound<T> at_bound = {g, window, taps, width, kSteps};
  if constexpr (!kOneSequence) {
    __syncwarp();  // what was stored above is stored again
    bounds.for_each<AtBound<T>::kLanes>(p, window, kSteps, lane,
                                        [&](int64_t bound, int step, int i) { at_bound.store(bound, step, i, &sums); });
  } else if ((g.dinitial_state.data && window.begin == 0) ||
             (g.dlast_state.data && window.length < kSteps + kConvHalo)) {
    __syncwarp();
    const int bound = lane / AtBound<T>::kLanes;
    at_bound.store(bound, ConvBounds::at(p, window, bound), lane % AtBound<T>::kLanes, nullptr);
  }
  sums.reduce_over_warp();
  if (lane == 0) sums.store(task, window.row_and_window, window.channel);
}

}  // namespace mamba::kernels::cuda
