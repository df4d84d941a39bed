// Every message of the step's checks, word for word; a refused call leaves the state alone.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "operators/expect_error.h"
#include "operators/update_call.h"

namespace mamba::tests {

namespace {

Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::zeros(sizes, dtype);
}

UpdateCall flat() {
  UpdateShape shape;
  shape.batch = shape.slots = 2;
  shape.dstate = 4;
  return make_update(shape, {});
}
UpdateCall heads() {
  UpdateShape shape;
  shape.channels = {2, 3};
  shape.batch = shape.slots = 2;
  shape.dstate = 4;
  return make_update(shape, {});
}

struct Row {
  UpdateCall call;
  Tensor UpdateCall::*argument;
  Tensor value;
  Kind kind;
  std::string text;  // after "selective_state_update: "
};

std::vector<Row> rows() {
  constexpr Kind kValue = Kind::kValue, kType = Kind::kType;
  return {
      {flat(), &UpdateCall::state, zeros({2, 6}), kValue,
       "expected state to have the shape (slots, dim, dstate) or (slots, heads, head_dim, dstate), but got [2, 6]"},
      {flat(), &UpdateCall::state, zeros({2, 6, 4}, at::kComplexFloat), kType,
       "expected state to be float32, float16, bfloat16 or float64, but got complex64"},
      {flat(), &UpdateCall::state, zeros({2, 1, 4}).expand({2, 6, 4}), kValue,
       "expected state to have memory of its own for every element, but got stride 0 in dimension 1 of [2, 6, 4]; pass "
       "state.contiguous() and keep that tensor"},
      {flat(), &UpdateCall::x, zeros({2, 7}), kValue,
       "expected x to have the shape (batch, dim) = [2, 6], but got [2, 7]"},
      {heads(), &UpdateCall::x, zeros({2, 6}), kValue,
       "expected x to have the shape (batch, heads, head_dim) = [2, 2, 3], but got [2, 6]"},
      {flat(), &UpdateCall::x, zeros({}), kValue, "expected x to have the shape (batch, dim) = [0, 6], but got []"},
      {flat(), &UpdateCall::x, zeros({2, 6}, at::kInt), kType,
       "expected x to be float32, float16, bfloat16 or float64, but got int32"},
      {flat(), &UpdateCall::x, zeros({2, 6}, at::kByte), kType,
       "expected x to be float32, float16, bfloat16 or float64, but got uint8"},
      {flat(), &UpdateCall::state, zeros({3, 6, 4}), kValue,
       "expected state to have a slot for each of the 2 rows of x, but got 3; or name the slots by "
       "state_batch_indices"},
      {flat(), &UpdateCall::dt, zeros({2, 1}), kValue,
       "expected dt to have the shape of x (batch, dim) = [2, 6], but got [2, 1]"},
      {heads(), &UpdateCall::dt, zeros({2, 2}), kValue,
       "expected dt to have the shape of x (batch, heads, head_dim) = [2, 2, 3], but got [2, 2]"},
      {flat(), &UpdateCall::dt, zeros({2, 6}, at::kHalf), kType,
       "expected dt to have the dtype of x (float32), but got float16"},
      {flat(), &UpdateCall::A, zeros({6, 5}), kValue,
       "expected A to have the shape (dim, dstate) = [6, 4], but got [6, 5]"},
      {heads(), &UpdateCall::A, zeros({2, 4}), kValue,
       "expected A to have the shape (heads, head_dim, dstate) = [2, 3, 4], but got [2, 4]"},
      {flat(), &UpdateCall::A, zeros({6, 4}, at::kDouble), kType,
       "expected A to be float32, float16 or bfloat16, but got float64"},
      {flat(), &UpdateCall::B, zeros({2, 5}), kValue,
       "expected B to have the shape (batch, dstate) or (batch, groups, dstate) = [2, 4], but got [2, 5]"},
      {flat(), &UpdateCall::B, zeros({2, 3, 5}), kValue,
       "expected B to have the shape (batch, groups, dstate) = [2, 3, 4], but got [2, 3, 5]"},
      {flat(), &UpdateCall::B, zeros({2, 4, 4}), kValue,
       "expected dim (6) to be divisible by the groups of B, but got 4 groups"},
      {heads(), &UpdateCall::C, zeros({2, 3, 4}), kValue,
       "expected heads (2) to be divisible by the groups of C, but got 3 groups"},
      {flat(), &UpdateCall::C, zeros({2, 0, 4}), kValue,
       "expected dim (6) to be divisible by the groups of C, but got 0 groups"},
      {flat(), &UpdateCall::C, zeros({2, 4}, at::kHalf), kType,
       "expected C to be float32 or to have the dtype of x (float32), but got float16"},
      {flat(), &UpdateCall::D, zeros({5}), kValue, "expected D to have the shape (dim) = [6], but got [5]"},
      {heads(), &UpdateCall::D, zeros({2}), kValue,
       "expected D to have the shape (heads, head_dim) = [2, 3], but got [2]"},
      {flat(), &UpdateCall::D, zeros({6}, at::kLong), kType,
       "expected D to be float32, float16 or bfloat16, but got int64"},
      {flat(), &UpdateCall::z, zeros({1, 6}), kValue,
       "expected z to have the shape of x (batch, dim) = [2, 6], but got [1, 6]"},
      {flat(), &UpdateCall::dt_bias, zeros({6, 1}), kValue,
       "expected dt_bias to have the shape (dim) = [6], but got [6, 1]"},
      {flat(), &UpdateCall::state_batch_indices, zeros({3}, at::kInt), kValue,
       "expected state_batch_indices to have the shape (batch) = [2], but got [3]"},
      {flat(), &UpdateCall::state_batch_indices, zeros({2}), kType,
       "expected state_batch_indices to be int32 or int64, but got float32"},
  };
}

void expect_refused(UpdateCall call, Kind kind, const std::string& text) {
  SCOPED_TRACE(text);
  const bool has_values = call.state.device().type() != at::kMeta;
  const Tensor before = has_values ? call.state.clone() : call.state;
  expect_error([&] { run(call); }, kind, "selective_state_update: " + text);
  if (has_values) {
    EXPECT_TRUE(has_bits_of(call.state, before)) << "the state after a refused call";
  }
}

void expect_row(const Row& row, at::Device device) {
  UpdateCall call = row.call;
  call.*row.argument = row.value;
  const bool is_expanded = row.text.find("memory of its own") != std::string::npos;
  for (const auto& [name, x] : call.tensors()) {
    if (!x->defined()) continue;
    *x = is_expanded && x == &call.state ? zeros({2, 1, 4}).to(device).expand({2, 6, 4}) : x->to(device);
  }
  expect_refused(call, row.kind, row.text);
}

TEST(UpdateErrors, OnTheCpu) {
  for (const Row& row : rows()) expect_row(row, at::kCPU);
}

TEST(UpdateErrors, OnMetaTensors) {
  for (const Row& row : rows()) expect_row(row, at::kMeta);
}

TEST(CudaUpdateErrors, AreTheSame) {
  MAMBA_SKIP_WITHOUT_DEVICE((Target{at::kCUDA, at::kFloat}));
  for (const Row& row : rows()) expect_row(row, at::Device(at::kCUDA, 0));
}

TEST(UpdateErrors, SlotsOutOfRange) {
  for (const at::ScalarType dtype : {at::kInt, at::kLong}) {
    UpdateCall call = flat();
    call.state_batch_indices = at::tensor(std::vector<int64_t>{-1, 2}, at::kLong).to(dtype);
    expect_refused(
        call, Kind::kValue,
        "expected state_batch_indices to be below the number of slots (2), but got 2 at row 1; negative means "
        "padding");
  }
}

TEST(UpdateErrors, TensorsOnAnotherDevice) {
  UpdateCall names = flat();
  names.state_batch_indices = zeros({2}, at::kInt);
  for (size_t i = 1; i < names.tensors().size(); ++i) {
    UpdateCall call = names;
    const auto [name, x] = call.tensors()[i];
    *x = x->to(at::kMeta);
    expect_refused(call, Kind::kOther,
                   std::string("expected ") + name +
                       " to be on the device of state (cpu), but got meta; move all tensors of a call to one device");
  }
}

TEST(UpdateErrors, GradientsAreRefusedAndTheWayOutIsNamed) {
  UpdateCall call = flat();
  call.A.requires_grad_();
  expect_refused(call, Kind::kNotImplemented,
                 "expected inputs that need no derivatives, for the state changes in place, but got one that requires "
                 "grad or carries a tangent; use selective_scan_with_state with L = 1, or torch.no_grad()");
}

}  // namespace

}  // namespace mamba::tests
