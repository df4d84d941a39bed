// How the CUDA kernel of a decoding step sees a problem: pure functions of its sizes and of how its tensors lie.
#pragma once

#include <initializer_list>

#include "mamba/kernels/config.h"

namespace mamba::kernels::cuda {

constexpr int kUpdateThreads = 128;
constexpr int kPlainStates = 16;    // of a channel, where a kernel has them fixed
constexpr int kPlainChannels = 64;  // of a block of such a kernel
constexpr int64_t kVectorBytes = 16;

/// States in 16 bytes.
constexpr MAMBA_HD int update_states(int64_t state_size) {
  return static_cast<int>(kVectorBytes / state_size);
}

/// Vectors of 16 bytes that a lane takes in where there are many states: so many lanes fewer do the work of a channel.
constexpr MAMBA_HD int update_vectors(int64_t state_size) {
  return static_cast<int>(state_size);
}

/// (rows, planes, channels, dstate): a plane is a head, or all the channels of a row where they lie evenly apart. The
/// strides count bytes.
struct UpdateTensor {
  char* data = nullptr;
  uint32_t row_stride = 0, plane_stride = 0, channel_stride = 0;
};

/// B or C: planes, or channels where there is only one plane, share a group.
struct UpdateCoefficient {
  const char* data = nullptr;
  uint32_t row_stride = 0, group_stride = 0, state_stride = 0;
  int groups = 1, per_group = 1;
  bool is_wide = false;
  bool by_vector = false;  // comes by 16 bytes, or as a whole; else by elements
};

struct UpdateTask {
  bool is_taken = false;  // else only the generic kernel takes the problem
  bool dt_softplus = false;
  bool is_tied = false;  // A is the same for all states of a channel
  bool is_plain =
      false;  // as Mamba's blocks decode: kPlainStates, one group, everything contiguous, B and C in x's type
  int planes = 0, channels = 0, dstate = 0;
  int vectors = 1;     // of states for each lane: 1 or update_vectors()
  int lanes_log2 = 0;  // lanes that share the states of a channel
  uint32_t first_row = 0;
  int64_t rows = 0, slots = 0;
  SlotOfRow slot_of_row;
  UpdateTensor state, A, D, dt_bias, x, dt, z, out;
  UpdateCoefficient B, C;
};

inline int64_t size_of(ScalarType type) {
  return type == ScalarType::kFloat64 ? 8 : type == ScalarType::kFloat32 ? 4 : 2;
}

/// Builds a task: what does not fit makes it one for the generic kernel.
class UpdateTaskBuilder {
 public:
  explicit UpdateTaskBuilder(const UpdateParams& params)
      : p(params), state_size(size_of(p.state_type)), states(update_states(state_size)), one_plane(is_one_plane()) {}

  UpdateTask task() {
    constexpr int64_t kMostPlanes = 65535, kMostLanes = 32, kFewLanes = 4;
    UpdateTask task;
    const bool is_single = p.activation_type != ScalarType::kFloat64 && p.state_type != ScalarType::kFloat64;
    const int64_t channels = p.heads * p.head_dim;
    if (!is_single || channels == 0 || channels >= kMost || p.dstate == 0 || p.slots >= kMost || p.rows >= kMost)
      return task;
    const int vectors = update_vectors(state_size);
    if (p.dstate % states != 0 || p.dstate > kMostLanes * vectors * states) return task;
    if (!one_plane && p.heads > kMostPlanes) return task;

    task.planes = one_plane ? 1 : static_cast<int>(p.heads);
    task.channels = static_cast<int>(one_plane ? channels : p.head_dim);
    task.dstate = static_cast<int>(p.dstate);
    task.vectors = p.dstate >= kFewLanes * vectors * states ? vectors : 1;
    while ((states * task.vectors << task.lanes_log2) < p.dstate) ++task.lanes_log2;
    task.rows = p.rows;
    task.slots = p.slots;
    task.slot_of_row = p.slot_of_row;
    task.dt_softplus = p.dt_softplus;
    task.is_tied = p.A.state_stride == 0;
    task.state = tensor(p.state, p.state.slot_stride, state_size);
    task.A = tensor(p.A, 0, 4);
    task.D = tensor(p.D, 0, 4);
    task.dt_bias = tensor(p.dt_bias, 0, 4);
    const int64_t size = size_of(p.activation_type);
    task.x = tensor(p.x, p.x.row_stride, size);
    task.dt = tensor(p.dt, p.dt.row_stride, size);
    task.z = tensor(p.z, p.z.row_stride, size);
    task.out = tensor(p.out, p.out.row_stride, size);
    task.B = coefficient(p.B);
    task.C = coefficient(p.C);
    task.is_taken = fits &&
                    are_vectors(p.state.data, p.state.state_stride,
                                {p.state.slot_stride, p.state.head_stride, p.state.dim_stride}, state_size) &&
                    (task.is_tied || are_vectors(p.A.data, p.A.state_stride, {p.A.head_stride, p.A.dim_stride}, 4));
    task.is_plain = p.dstate == kPlainStates && !task.is_tied && task.planes == 1 && is_plain(task.B) &&
                    is_plain(task.C) && is_plain(task.state, p.dstate * state_size) && is_plain(task.A, p.dstate * 4) &&
                    is_plain(task.D, 4) && is_plain(task.dt_bias, 4) && is_plain(task.x, size) &&
                    is_plain(task.dt, size) && is_plain(task.z, size) && is_plain(task.out, size);
    return task;
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 31;

  /// Whether all channels lie evenly apart, so that heads do not matter.
  bool is_one_plane() const {
    const auto is_even = [&](const auto& x) {
      return !x.data || p.head_dim == 1 || x.head_stride == p.head_dim * x.dim_stride;
    };
    return is_even(p.state) && is_even(p.x) && is_even(p.dt) && is_even(p.z) && is_even(p.out) && is_even(p.A) &&
           is_even(p.D) && is_even(p.dt_bias);
  }

  bool is_plain(const UpdateTensor& x, int64_t channel_bytes) const {
    return !x.data || x.channel_stride == channel_bytes;
  }
  bool is_plain(const UpdateCoefficient& x) const {
    return x.groups == 1 && x.by_vector && x.is_wide == (p.activation_type == ScalarType::kFloat32);
  }

  /// Whether runs of `states` elements that start at multiples of the strides are aligned to their size or 16 bytes.
  bool are_vectors(const void* data, int64_t state_stride, std::initializer_list<int64_t> strides,
                   int64_t element_size) const {
    const int64_t bytes = states * element_size < kVectorBytes ? states * element_size : kVectorBytes;
    bool all = state_stride == 1 && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
    for (const int64_t stride : strides) all = all && stride * element_size % bytes == 0;
    return all;
  }

  uint32_t bytes(int64_t stride, int64_t count, int64_t element_size) {
    fits = fits && (count <= 1 || (stride >= 0 && stride * element_size < kMost));
    return static_cast<uint32_t>(stride * element_size);
  }

  template <class From>
  UpdateTensor tensor(const From& x, int64_t row_stride, int64_t element_size) {
    if (!x.data) return {};
    const int64_t last = (p.heads - 1) * x.head_stride + (p.head_dim - 1) * x.dim_stride + p.dstate;
    fits = fits && last * element_size < kMost;
    return {static_cast<char*>(const_cast<void*>(static_cast<const void*>(x.data))), bytes(row_stride, 2, element_size),
            bytes(x.head_stride, p.heads, element_size),
            bytes(p.head_dim == 1 ? x.head_stride : x.dim_stride, 2, element_size)};
  }

  UpdateCoefficient coefficient(const UpdateParams::RowCoefficient& x) {
    const int64_t element_size = x.is_wide ? 4 : size_of(p.activation_type);
    const int64_t last = (x.groups - 1) * x.group_stride + (p.dstate - 1) * x.state_stride;
    fits = fits && last * element_size < kMost;
    return {static_cast<const char*>(x.data),
            bytes(x.row_stride, p.rows, element_size),
            bytes(x.group_stride, x.groups, element_size),
            bytes(x.state_stride, p.dstate, element_size),
            static_cast<int>(x.groups),
            static_cast<int>(p.heads / x.groups * (one_plane ? p.head_dim : 1)),
            x.is_wide,
            are_vectors(x.data, x.state_stride, {x.row_stride, x.group_stride}, element_size)};
  }

  const UpdateParams& p;
  const int64_t state_size, states;
  const bool one_plane;
  bool fits = true;
};

inline UpdateTask update_task(const UpdateParams& params) {
  return UpdateTaskBuilder(params).task();
}

}  // namespace mamba::kernels::cuda
