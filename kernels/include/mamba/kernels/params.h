// What a kernel is told: sizes, pointers and strides, named by the symbols of the maths. No ownership, no torch.
//
// "State type" is float (double for double activations), or its complex counterpart when A is complex; "wide" means
// float (double). Strides count elements. A null pointer is an absent argument or a result that nobody asked for.
#pragma once

#include <cstdint>
#include <type_traits>

namespace mamba::kernels {

enum class ScalarType : uint8_t { kFloat32, kFloat16, kBFloat16, kFloat64 };

/// A half-open range of independent pieces of work.
struct Range {
  int64_t begin = 0, end = 0;
};

/// (batch, dim, length) of the activation type.
struct Activation {
  void* data = nullptr;
  int64_t batch_stride = 0, dim_stride = 0, length_stride = 0;
};

/// B or C as (batch, groups, dstate, length). A constant one (dim, dstate) has a group for each channel and no strides
/// along batch and length.
struct Coefficient {
  const void* data = nullptr;
  int64_t groups = 1;
  int64_t batch_stride = 0, group_stride = 0, state_stride = 0, length_stride = 0;
  bool is_constant = false;
  bool is_state_type = false;  // elements are of the state type; else of the activation type
};

struct ScanParams {
  ScalarType activation_type = ScalarType::kFloat32;
  bool is_complex = false;
  bool delta_softplus = false;
  bool reverse = false;
  int64_t batch = 0, dim = 0, length = 0, dstate = 0;

  // Packed sequences: bounds of `sequences` sequences within the one batch. Dense: null, and sequences == batch.
  int64_t sequences = 0;
  const int64_t* cu_seqlens = nullptr;

  Activation u, delta, z;
  Coefficient B, C;
  const void* A = nullptr;              // (dim, dstate), state type, contiguous
  const void* D = nullptr;              // (dim), wide, contiguous
  const void* delta_bias = nullptr;     // (dim), wide, contiguous
  const void* initial_state = nullptr;  // (sequences, dim, dstate), state type, contiguous

  Activation out;
  void* last_state = nullptr;   // (sequences, dim, dstate), state type, contiguous; always given
  void* checkpoints = nullptr;  // (batch, checkpoint_slots, dstate, dim), state type, contiguous: config.h
  int64_t checkpoint_slots = 0;
  void* carries = nullptr;  // scratch memory of a forward that is cut along time: scan.h
};

struct ScanGradParams {
  ScanParams scan;  // its inputs and checkpoints

  Activation dout;                    // read; null means zero
  const void* dlast_state = nullptr;  // (sequences, dim, dstate), state type, contiguous; null means zero

  Activation du, ddelta, dz;
  // Partial sums, zeroed by the caller, to be added in order along their first dimension; config.h counts them.
  void* dA = nullptr;  // (sequences, dim, dstate), state type
  void* dB = nullptr;  // (slices, batch, groups, dstate, length), constant: (sequences, dim, dstate); state type
  void* dC = nullptr;  // as dB
  void* dD = nullptr;  // (sequences, dim), wide
  void* ddelta_bias = nullptr;     // (sequences, dim), wide
  void* dinitial_state = nullptr;  // (sequences, dim, dstate), state type; always given: it carries the adjoint
};

/// The slot of each row of a step. Without data row i has slot i.
struct SlotOfRow {
  const void* data = nullptr;  // int64, or int32
  int64_t stride = 1;
  bool is_int32 = false;
};

/// One decoding step: B rows, channels (heads, head_dim) with heads == dim and head_dim == 1 in the headless form.
struct UpdateParams {
  ScalarType activation_type = ScalarType::kFloat32, state_type = ScalarType::kFloat32;
  bool dt_softplus = false;
  int64_t rows = 0, heads = 0, head_dim = 1, dstate = 0, slots = 0;

  struct State {
    void* data = nullptr;
    int64_t slot_stride = 0, head_stride = 0, dim_stride = 0, state_stride = 0;
  } state;
  SlotOfRow slot_of_row;

  struct PerRow {
    void* data = nullptr;
    int64_t row_stride = 0, head_stride = 0, dim_stride = 0;
  } x, dt, z, out;
  struct RowCoefficient {
    const void* data = nullptr;
    int64_t groups = 1, row_stride = 0, group_stride = 0, state_stride = 0;
    bool is_wide = false;  // elements are wide; else of the activation type
  } B, C;
  struct PerChannel {
    const void* data = nullptr;  // wide
    int64_t head_stride = 0, dim_stride = 0, state_stride = 0;
  } A, D, dt_bias;
};

static_assert(std::is_trivially_copyable_v<ScanGradParams> && sizeof(ScanGradParams) < 1024);
static_assert(std::is_trivially_copyable_v<UpdateParams>);

}  // namespace mamba::kernels
