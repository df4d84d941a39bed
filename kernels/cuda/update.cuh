// A decoding step: the lanes that share a channel each take 16 bytes of its states, which are contiguous. It lasts
// hardly longer than its instructions take to issue, hence offsets of 32 bits, and nothing that is not needed.
#pragma once

#include "cuda/elements.cuh"
#include "cuda/fast_math.cuh"
#include "cuda/update.h"

namespace mamba::kernels::cuda {

/// A thread's place. In a plain task the strides of channels are known.
template <bool kPlain>
struct UpdatePlace {
  uint32_t row, plane, channel;

  /// A thread's element; all but the channel is the same for a block.
  template <class T>
  __device__ __forceinline__ T* at(const UpdateTensor& x, uint32_t of_row, uint32_t elements = 1) const {
    char* const in_row = x.data + static_cast<uint64_t>(of_row) * x.row_stride;
    if constexpr (kPlain) {
      return reinterpret_cast<T*>(in_row) + channel * elements;
    } else {
      return reinterpret_cast<T*>(in_row + (plane * x.plane_stride + channel * x.channel_stride));
    }
  }
  template <class T>
  __device__ __forceinline__ T* at(const UpdateTensor& x) const {
    return at<T>(x, row);
  }
  __device__ __forceinline__ const float* parameter(const UpdateTensor& x, uint32_t elements = 1) const {
    return at<const float>(x, 0, elements);
  }
};

/// One lane's part of B or C of a row, in one of two types, which share the memory.
template <class T, int kCount, bool kPlain>
struct CoefficientElements {
  static constexpr bool kMayBeWide = !kPlain && sizeof(T) != sizeof(float);
  using Narrow = Elements<T, kCount>;

  std::conditional_t<kMayBeWide, Elements<float, kCount>, Narrow> elements;

  template <bool kByVector>
  __device__ __forceinline__ void load(const UpdateCoefficient& x, uint32_t row, uint32_t group, uint32_t state) {
    const char* from = x.data + static_cast<uint64_t>(row) * x.row_stride;
    from += kPlain ? state * sizeof(T) : group * x.group_stride + state * x.state_stride;
    if (!kMayBeWide || x.is_wide) {
      kByVector ? elements.load(from) : elements.load(from, x.state_stride);
    } else {
      Narrow narrow;
      kByVector ? narrow.load(from) : narrow.load(from, x.state_stride);
      memcpy(elements.words, narrow.words, sizeof(narrow.words));
    }
  }
  __device__ __forceinline__ void widen_into(float (&to)[kCount], bool is_wide) const {
    if (!kMayBeWide || is_wide) {
      elements.widen_into(to);
    } else {
      Narrow narrow;
      memcpy(narrow.words, elements.words, sizeof(narrow.words));
      narrow.widen_into(to);
    }
  }
};

/// A block takes some channels of a plane of one row.
template <class T, class Stored, int kVectors, bool kPlain>
__global__ void __launch_bounds__(kUpdateThreads) update_kernel(const __grid_constant__ UpdateTask task) {
  constexpr int kStates = update_states(sizeof(Stored));
  const uint32_t lanes = kPlain ? kPlainStates / kStates : 1u << task.lanes_log2, lane = threadIdx.x & (lanes - 1);
  const uint32_t thread = blockIdx.x * kUpdateThreads + threadIdx.x;
  const uint32_t wanted = kPlain ? thread / lanes : thread >> task.lanes_log2;
  const uint32_t last = static_cast<uint32_t>(task.channels) - 1;
  const uint32_t dstate = kPlain ? kPlainStates : static_cast<uint32_t>(task.dstate);
  const bool is_channel = wanted <= last;
  const UpdatePlace<kPlain> place = {task.first_row + blockIdx.y, blockIdx.z,
                                     is_channel ? wanted : last};  // all lanes meet in the shuffles

  const int64_t slot = slot_of(task.slot_of_row, place.row);
  if (slot < 0 || slot >= task.slots) {
    if (lane == 0 && is_channel) narrow_into(0, place.template at<T>(task.out));
    return;
  }
  const auto state_of = [&](int vector) { return (static_cast<uint32_t>(vector) * lanes + lane) * kStates; };
  Stored* const state = place.template at<Stored>(task.state, static_cast<uint32_t>(slot), dstate);
  Elements<Stored, kStates> states[kVectors];
  Elements<float, kStates> rates[kVectors];
  const float* const rate = place.parameter(task.A, dstate);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (state_of(v) < dstate) states[v].load(reinterpret_cast<const char*>(state + state_of(v)));
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const bool is_tied = !kPlain && task.is_tied;
    if (!is_tied && state_of(v) < dstate) rates[v].load(reinterpret_cast<const char*>(rate + state_of(v)));
  }
  const float tied_rate = !kPlain && task.is_tied ? *rate : 0;
  __syncwarp();  // keeps the compiler from issuing these loads, which take longest, last
  const T dt = *place.template at<const T>(task.dt), x = *place.template at<const T>(task.x);
  uint32_t group_B = 0, group_C = 0;
  if constexpr (!kPlain) {
    const uint32_t grouped = task.planes > 1 ? place.plane : place.channel;
    if (task.B.groups > 1) group_B = grouped / static_cast<uint32_t>(task.B.per_group);
    if (task.C.groups > 1) group_C = grouped / static_cast<uint32_t>(task.C.per_group);
  }
  CoefficientElements<T, kStates, kPlain> Bs[kVectors], Cs[kVectors];
  const auto load_coefficients = [&](auto by_vector) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (state_of(v) >= dstate) continue;
      Bs[v].template load<by_vector.value>(task.B, place.row, group_B, state_of(v));
      Cs[v].template load<by_vector.value>(task.C, place.row, group_C, state_of(v));
    }
  };
  if (kPlain || (task.B.by_vector && task.C.by_vector)) {
    load_coefficients(std::true_type());
  } else {
    load_coefficients(std::false_type());
  }
  const float bias = task.dt_bias.data ? *place.parameter(task.dt_bias) : 0;
  const float D = task.D.data ? *place.parameter(task.D) : 0;
  const T z = task.z.data ? *place.template at<const T>(task.z) : T{};
  T* const out = place.template at<T>(task.out);

  float gate = 1;
  const auto open_gate = [&] {
    if (task.z.data) gate = widen(z) * fast_sigmoid(widen(z));
  };
  if constexpr (kPlain) {
    open_gate();
    keep(gate);  // not left to the end, when nothing else is going on
  }
  float step = widen(dt) + bias;
  if (task.dt_softplus) step = fast_softplus(step);
  const float input = step * widen(x);
  float y = 0;
  const auto advance = [&](auto&& decay_of) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (state_of(v) >= dstate) continue;
      float h[kStates], A[kStates], B[kStates], C[kStates];
      states[v].widen_into(h);
      rates[v].widen_into(A);
      Bs[v].widen_into(B, task.B.is_wide);
      Cs[v].widen_into(C, task.C.is_wide);
#pragma unroll
      for (int i = 0; i < kStates; ++i) {
        h[i] = fmaf(decay_of(A[i]), h[i], input * B[i]);
        y = fmaf(C[i], h[i], y);
      }
      states[v].narrow_from(h);
      if (is_channel) states[v].store(reinterpret_cast<char*>(state + state_of(v)));
    }
  };
  const auto decay_of = [&](float A) { return exp2_approximate(step * A * kLog2E); };
  if (!kPlain && task.is_tied) {
    const float decay = decay_of(tied_rate);
    advance([&](float) { return decay; });
  } else {
    advance(decay_of);
  }
#pragma unroll
  for (uint32_t mask = kWarpSize / 2; mask > 0; mask /= 2) {
    if (mask < lanes) y += __shfl_xor_sync(kWholeWarp, y, mask);
  }
  if (lane != 0 || !is_channel) return;
  if constexpr (!kPlain) open_gate();
  if (task.D.data) y = fmaf(D, widen(x), y);
  narrow_into(y * gate, out);
}

template <class T, class Stored>
Error update_with(const UpdateTask& whole, CUstream_st* stream) {
  constexpr int64_t kMostRows = 65535;
  UpdateTask task = whole;
  for (int64_t first = 0; first < whole.rows; first += kMostRows) {
    const int64_t rows = whole.rows - first < kMostRows ? whole.rows - first : kMostRows;
    task.first_row = static_cast<uint32_t>(first);
    const dim3 grid(static_cast<unsigned>(ceil_div(task.channels, kUpdateThreads >> task.lanes_log2)),
                    static_cast<unsigned>(rows), static_cast<unsigned>(task.planes));
    if (task.is_plain) {
      update_kernel<T, Stored, 1, true><<<grid, kUpdateThreads, 0, stream>>>(task);
    } else if (task.vectors == 1) {
      update_kernel<T, Stored, 1, false><<<grid, kUpdateThreads, 0, stream>>>(task);
    } else {
      update_kernel<T, Stored, update_vectors(sizeof(Stored)), false><<<grid, kUpdateThreads, 0, stream>>>(task);
    }
  }
  return cudaGetLastError();
}

}  // namespace mamba::kernels::cuda
