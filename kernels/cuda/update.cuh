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

/// Plain: as UpdateTask::is_plain says. A plain kernel that reads slots asks for all but the states before it waits for
/// the slot. That is a kernel of its own, for an instruction that only may need the slot waits for it all the same.
enum class UpdateForm { kGeneral, kPlain, kPlainInSlots };

/// A row's slot as it came from memory, in halves: taking it as a number would wait for it.
struct UpdateSlot {
  uint32_t low, high;
  bool is_int32;

  __device__ __forceinline__ void load(const SlotOfRow& of, uint32_t row) {
    is_int32 = of.is_int32;
    const int64_t words = is_int32 ? 1 : 2, first = row * of.stride * words;
    low = static_cast<const uint32_t*>(of.data)[first];
    high = static_cast<const uint32_t*>(of.data)[first + words - 1];
  }
  /// There are less than 2^31 slots, so that negative indices are too large as well.
  __device__ __forceinline__ bool is_among(int64_t slots) const {
    return (is_int32 || high == 0) && low < static_cast<uint32_t>(slots);
  }
};

template <class Stored, UpdateForm kForm>
constexpr MAMBA_HD int update_threads() {
  return kForm == UpdateForm::kGeneral ? kUpdateThreads : kPlainChannels * kPlainStates / update_states(sizeof(Stored));
}

/// A block takes some channels of a plane of one row.
template <class T, class Stored, int kVectors, UpdateForm kForm>
__global__ void __launch_bounds__(update_threads<Stored, kForm>())
    update_kernel(const __grid_constant__ UpdateTask task) {
  constexpr bool kPlain = kForm != UpdateForm::kGeneral;
  constexpr int kStates = update_states(sizeof(Stored));
  const uint32_t lanes = kPlain ? kPlainStates / kStates : 1u << task.lanes_log2, lane = threadIdx.x & (lanes - 1);
  const uint32_t thread = blockIdx.x * update_threads<Stored, kForm>() + threadIdx.x;
  const uint32_t wanted = kPlain ? thread / lanes : thread >> task.lanes_log2;
  const uint32_t last = static_cast<uint32_t>(task.channels) - 1;
  const uint32_t dstate = kPlain ? kPlainStates : static_cast<uint32_t>(task.dstate);
  const bool is_channel = wanted <= last;
  const UpdatePlace<kPlain> place = {task.first_row + blockIdx.y, blockIdx.z,
                                     is_channel ? wanted : last};  // all lanes meet in the shuffles

  uint32_t slot = place.row;
  [[maybe_unused]] UpdateSlot later_slot;
  if constexpr (kForm == UpdateForm::kPlainInSlots) later_slot.load(task.slot_of_row, place.row);
  const auto pad = [&] {
    if (lane == 0 && is_channel) narrow_into(0, place.template at<T>(task.out));
  };
  const auto state_of = [&](int vector) { return (static_cast<uint32_t>(vector) * lanes + lane) * kStates; };
  Stored* state = nullptr;
  Elements<Stored, kStates> states[kVectors];
  const auto load_states = [&] {
    state = place.template at<Stored>(task.state, slot, dstate);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (state_of(v) < dstate) states[v].load(reinterpret_cast<const char*>(state + state_of(v)));
    }
  };
  if constexpr (kForm == UpdateForm::kGeneral) {
    const int64_t index = slot_of(task.slot_of_row, place.row);
    if (index < 0 || index >= task.slots) return pad();
    slot = static_cast<uint32_t>(index);
  }
  if constexpr (kForm != UpdateForm::kPlainInSlots) load_states();
  Elements<float, kStates> rates[kVectors];
  const float* const rate = place.parameter(task.A, dstate);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const bool is_tied = !kPlain && task.is_tied;
    if (!is_tied && state_of(v) < dstate) rates[v].load(reinterpret_cast<const char*>(rate + state_of(v)));
  }
  const float tied_rate = !kPlain && task.is_tied ? *rate : 0;
  __syncwarp();  // keeps the compiler from issuing these loads, which take longest, last
  T dt = *place.template at<const T>(task.dt);
  const T x = *place.template at<const T>(task.x);
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
  T z = task.z.data ? *place.template at<const T>(task.z) : T{};
  T* const out = place.template at<T>(task.out);
  if constexpr (kForm == UpdateForm::kPlainInSlots) {
    __syncwarp();  // keeps the compiler from issuing the loads above behind this wait
    if (!later_slot.is_among(task.slots)) return pad();
    slot = later_slot.low;
    load_states();
    __syncwarp();
  }

  float gate = 1;
  const auto open_gate = [&] {
    if (task.z.data) gate = widen(z) * fast_sigmoid(widen(z));
  };
  // In either branch by itself: what came before it would wait for dt before the states are asked for.
  const auto waiting_step = [&] {
    keep(dt);
    return widen(dt) + bias;
  };
  const float step = task.dt_softplus ? fast_softplus(waiting_step()) : waiting_step();
  if constexpr (kPlain) {
    keep(z);  // as dt
    open_gate();
    keep(gate);  // not left to the end, when nothing else is going on
  }
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
  for (int bit = 4; bit >= 0; --bit) {
    if (1u << bit < lanes) y += __shfl_xor_sync(kWholeWarp, y, 1u << bit);
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
    const auto launch = [&](auto kernel, int threads, int64_t channels) {
      const dim3 grid(static_cast<unsigned>(ceil_div(task.channels, channels)), static_cast<unsigned>(rows),
                      static_cast<unsigned>(task.planes));
      kernel<<<grid, static_cast<unsigned>(threads), 0, stream>>>(task);
    };
    const auto launch_plain = [&](auto form) {
      launch(update_kernel<T, Stored, 1, form.value>, update_threads<Stored, form.value>(), kPlainChannels);
    };
    const auto launch_general = [&](auto vectors) {
      launch(update_kernel<T, Stored, vectors.value, UpdateForm::kGeneral>, kUpdateThreads,
             kUpdateThreads >> task.lanes_log2);
    };
    if (task.is_plain && task.slot_of_row.data) {
      launch_plain(std::integral_constant<UpdateForm, UpdateForm::kPlainInSlots>());
    } else if (task.is_plain) {
      launch_plain(std::integral_constant<UpdateForm, UpdateForm::kPlain>());
    } else if (task.vectors == 1) {
      launch_general(std::integral_constant<int, 1>());
    } else {
      launch_general(std::integral_constant<int, update_vectors(sizeof(Stored))>());
    }
  }
  return cudaGetLastError();
}

}  // namespace mamba::kernels::cuda
