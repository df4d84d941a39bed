// The arguments of selective_state_update, and their oracle.
#pragma once

#include "operators/scan_call.h"

namespace mamba::tests {

/// Absent arguments are undefined.
struct UpdateCall {
  Tensor state, x, dt, A, B, C, D, z, dt_bias;
  bool dt_softplus = true;
  Tensor state_batch_indices;

  std::vector<std::pair<const char*, Tensor*>> tensors();
  /// In schema order, as the dispatcher takes them.
  std::vector<c10::IValue> values() const;
  UpdateCall clone() const;
};

struct UpdateShape {
  std::vector<int64_t> channels = {6};  // (dim) or (heads, head_dim)
  int64_t batch = 3, dstate = 5, slots = 3;
  int64_t groups = 0;  // 0: B and C are (batch, dstate)
};

/// Parameters and state are float32, float64 for float64 activations; the state may be told otherwise.
UpdateCall make_update(const UpdateShape& shape, const Target& target, uint64_t seed = 1);
UpdateCall make_update(const UpdateShape& shape, const Target& target, uint64_t seed, at::ScalarType state_dtype);

/// Through the public C++ function; changes call.state.
Tensor run(UpdateCall& call);

/// out and the new state in float64, on the CPU; call.state is left alone.
OutAndState oracle(const UpdateCall& call);

}  // namespace mamba::tests
