// Every message of the scan's checks, word for word, the same on the CPU, on meta tensors and on CUDA.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "mamba/selective_scan.h"
#include "operators/expect_error.h"
#include "operators/scan_call.h"

namespace mamba::tests {

namespace {

Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::zeros(sizes, dtype);
}

Case small(const char* name) {
  return Case(name).size(2, 6, 7, 4);
}
ScanCall dense(at::ScalarType dtype = at::kFloat) {
  return make_call(small("dense"), {at::kCPU, dtype});
}
ScanCall groups() {
  return make_call(small("groups").coefficients(grouped(3), grouped(2)), {});
}
ScanCall constants() {
  return make_call(small("constant").coefficients(constant(), constant()), {});
}
ScanCall per_channel() {
  return make_call(small("per_channel").transition(Transition::kPerChannel), {});
}
ScanCall complex(at::ScalarType dtype = at::kFloat) {
  return make_call(small("complex").transition(Transition::kComplex), {at::kCPU, dtype});
}
ScanCall complex_constants() {
  return make_call(small("complex").transition(Transition::kComplex).coefficients(constant(), constant()), {});
}
ScanCall packed() {
  return make_call(small("packed").packed(7, {0, 2, 7}), {});
}

struct Row {
  ScanCall call;
  Tensor ScanCall::*argument;
  Tensor value;
  Kind kind;
  std::string text;  // after "<op>: "
};

std::vector<Row> rows() {
  constexpr Kind kValue = Kind::kValue, kType = Kind::kType;
  return {
      {dense(), &ScanCall::u, zeros({6, 7}), kValue,
       "expected u to have three dimensions (batch, dim, length), but got [6, 7]"},
      {dense(), &ScanCall::u, zeros({2, 6, 7}, at::kLong), kType,
       "expected u to be float32, float16, bfloat16 or float64, but got int64"},
      {dense(), &ScanCall::delta, zeros({2, 6, 6}), kValue,
       "expected delta to have the shape of u (batch, dim, length) = [2, 6, 7], but got [2, 6, 6]"},
      {dense(), &ScanCall::delta, zeros({2, 6, 7}, at::kBFloat16), kType,
       "expected delta to have the dtype of u (float32), but got bfloat16"},
      {dense(), &ScanCall::A, zeros({5, 4}), kValue,
       "expected A to have the shape (dim, dstate) or (dim) with dim = 6, but got [5, 4]"},
      {dense(), &ScanCall::A, zeros({6, 4}, at::kDouble), kType,
       "expected A to be float32, float16 or bfloat16, but got float64"},
      {dense(at::kDouble), &ScanCall::A, zeros({6, 4}, at::kInt), kType,
       "expected A to be float32, float16, bfloat16 or float64, but got int32"},
      {complex(), &ScanCall::A, zeros({6, 4}, at::kComplexDouble), kType,
       "expected a complex A to be complex64 when u is float32, but got complex128"},
      {complex(at::kDouble), &ScanCall::A, zeros({6, 4}, at::kComplexFloat), kType,
       "expected a complex A to be complex128 when u is float64, but got complex64"},
      {constants(), &ScanCall::B, zeros({4, 6}), kValue,
       "expected B to have the shape (dim, dstate) = [6, 4], but got [4, 6]"},
      {constants(), &ScanCall::B, zeros({6, 4}, at::kBool), kType,
       "expected B to be float32, float16 or bfloat16, but got bool"},
      {complex_constants(), &ScanCall::B, zeros({6, 4}, at::kComplexDouble), kType,
       "expected B to have the dtype of A (complex64), but got complex128"},
      {dense(), &ScanCall::B, zeros({2, 4, 8}), kValue,
       "expected B to have the shape (batch, dstate, length) = [2, 4, 7], but got [2, 4, 8]"},
      {per_channel(), &ScanCall::B, zeros({2, 1, 7}), kValue,
       "expected B to have the shape (batch, dim, length) = [2, 6, 7], but got [2, 1, 7]"},
      {groups(), &ScanCall::B, zeros({2, 3, 4, 6}), kValue,
       "expected B to have the shape (batch, groups, dstate, length) = [2, 3, 4, 7], but got [2, 3, 4, 6]"},
      {groups(), &ScanCall::B, zeros({2, 4, 4, 7}), kValue,
       "expected dim (6) to be divisible by the groups of B, but got 4 groups"},
      {groups(), &ScanCall::B, zeros({2, 0, 4, 7}), kValue,
       "expected dim (6) to be divisible by the groups of B, but got 0 groups"},
      {dense(), &ScanCall::B, zeros({7}), kValue,
       "expected B to have the shape (batch, dstate, length), (batch, groups, dstate, length) or (dim, dstate), but "
       "got "
       "[7]"},
      {dense(), &ScanCall::B, zeros({2, 4, 7}, at::kHalf), kType,
       "expected B to have the dtype of u (float32), but got float16"},
      {complex(), &ScanCall::B, zeros({2, 4, 7}, at::kComplexDouble), kType,
       "expected B to have the dtype of A (complex64), but got complex128"},
      {dense(), &ScanCall::C, zeros({2, 5, 7}), kValue,
       "expected C to have the shape (batch, dstate, length) = [2, 4, 7], but got [2, 5, 7]"},
      {groups(), &ScanCall::C, zeros({2, 5, 4, 7}), kValue,
       "expected dim (6) to be divisible by the groups of C, but got 5 groups"},
      {dense(), &ScanCall::D, zeros({6, 1}), kValue, "expected D to have the shape (dim) = [6], but got [6, 1]"},
      {dense(), &ScanCall::D, zeros({6}, at::kComplexFloat), kType,
       "expected D to be float32, float16 or bfloat16, but got complex64"},
      {dense(), &ScanCall::z, zeros({1, 6, 7}), kValue,
       "expected z to have the shape of u (batch, dim, length) = [2, 6, 7], but got [1, 6, 7]"},
      {dense(), &ScanCall::z, zeros({2, 6, 7}, at::kDouble), kType,
       "expected z to have the dtype of u (float32), but got float64"},
      {dense(), &ScanCall::delta_bias, zeros({1}), kValue,
       "expected delta_bias to have the shape (dim) = [6], but got [1]"},
      {dense(), &ScanCall::delta_bias, zeros({6}, at::kDouble), kType,
       "expected delta_bias to be float32, float16 or bfloat16, but got float64"},
      {dense(), &ScanCall::initial_state, zeros({6, 4}), kValue,
       "expected initial_state to have the shape (batch, dim, dstate) = [2, 6, 4], but got [6, 4]"},
      {dense(), &ScanCall::initial_state, zeros({2, 6, 4}, at::kComplexFloat), kType,
       "expected initial_state to be float32, float16 or bfloat16, but got complex64"},
      {complex(), &ScanCall::initial_state, zeros({2, 6, 4}), kType,
       "expected initial_state to have the dtype of A (complex64), but got float32"},
      {packed(), &ScanCall::initial_state, zeros({1, 6, 4}), kValue,
       "expected initial_state to have the shape (sequences, dim, dstate) = [2, 6, 4], but got [1, 6, 4]"},
      {packed(), &ScanCall::cu_seqlens, zeros({3}), kType, "expected cu_seqlens to be int32 or int64, but got float32"},
      {packed(), &ScanCall::cu_seqlens, zeros({1, 3}, at::kInt), kValue,
       "expected cu_seqlens to have the shape (sequences + 1), but got [1, 3]"},
      {packed(), &ScanCall::cu_seqlens, zeros({0}, at::kInt), kValue,
       "expected cu_seqlens to have the shape (sequences + 1), but got [0]"},
      {dense(), &ScanCall::cu_seqlens, zeros({3}, at::kInt), kValue,
       "expected cu_seqlens to come with a batch of 1, but got batch 2; pack the sequences one after another along "
       "length"},
  };
}

std::vector<Row> rows_about_values() {
  const auto bounds = [](std::vector<int64_t> c) { return at::tensor(c, at::kLong); };
  constexpr Kind kValue = Kind::kValue;
  return {
      {packed(), &ScanCall::cu_seqlens, bounds({0, 5, 8}), kValue,
       "expected cu_seqlens to lie between 0 and length (7), but got 8 at index 2"},
      {packed(), &ScanCall::cu_seqlens, bounds({-1, 5, 7}), kValue,
       "expected cu_seqlens to lie between 0 and length (7), but got -1 at index 0"},
      {packed(), &ScanCall::cu_seqlens, bounds({0, 5, 4}), kValue,
       "expected cu_seqlens not to decrease, but got 4 after 5 at index 2"},
  };
}

const char* const kOperators[] = {"selective_scan", "selective_scan_with_state", "_selective_scan_fwd"};

void expect_row(const Row& row, at::Device device) {
  SCOPED_TRACE(row.text);
  ScanCall call = row.call;
  call.*row.argument = row.value;
  call = call.to(device);
  for (const std::string op : kOperators) {
    expect_error([&] { call_by_name("mamba::" + op, call.values()); }, row.kind, op + ": " + row.text);
  }
  call.A = call.A.detach().requires_grad_(call.A.is_floating_point() || call.A.is_complex());
  expect_error([&] { call_by_name("mamba::selective_scan", call.values()); }, row.kind, "selective_scan: " + row.text);
}

TEST(ScanErrors, OnTheCpu) {
  for (const Row& row : rows()) expect_row(row, at::kCPU);
  for (const Row& row : rows_about_values()) expect_row(row, at::kCPU);
}

TEST(ScanErrors, OnMetaTensors) {
  for (const Row& row : rows()) expect_row(row, at::kMeta);
}

TEST(CudaScanErrors, AreTheSame) {
  MAMBA_SKIP_WITHOUT_DEVICE((Target{at::kCUDA, at::kFloat}));
  for (const Row& row : rows()) expect_row(row, at::Device(at::kCUDA, 0));
}

TEST(ScanErrors, TensorsOnAnotherDevice) {
  ScanCall names = packed();
  for (size_t i = 1; i < names.differentiable().size() + 1; ++i) {
    ScanCall call = packed();
    const bool is_bounds = i == names.differentiable().size();
    Tensor& x = is_bounds ? call.cu_seqlens : *call.differentiable()[i].second;
    const std::string name = is_bounds ? "cu_seqlens" : names.differentiable()[i].first;
    x = x.to(at::kMeta);
    expect_error([&] { run(call); }, Kind::kOther,
                 "selective_scan_with_state: expected " + name +
                     " to be on the device of u (cpu), but got meta; move all tensors of a call to one device");
  }
}

TEST(ScanErrors, NameTheFirstWrongArgumentInSchemaOrder) {
  const ScanCall good = packed();
  ScanCall call = good, fixed = good;
  for (const auto& [name, x] : call.differentiable()) *x = zeros({1, 1, 1, 1, 1});
  call.cu_seqlens = zeros({1, 1}, at::kInt);
  for (size_t i = 0; i < call.differentiable().size(); ++i) {
    const auto [name, x] = call.differentiable()[i];
    try {
      run(call);
      ADD_FAILURE() << "no error about " << name;
    } catch (const c10::Error& error) {
      const std::string expected = std::string("selective_scan_with_state: expected ") + name + " ";
      EXPECT_EQ(std::string(error.what_without_backtrace()).substr(0, expected.size()), expected);
    }
    *x = *fixed.differentiable()[i].second;
  }
  EXPECT_THROW(run(call), c10::ValueError);
}

/// As a CUDA tensor would meet it: the key is chosen by hand, for there may be no device.
TEST(ScanErrors, CudaTensorsInALibraryWithoutCuda) {
  if (version().find("CUDA none") == std::string::npos) GTEST_SKIP() << "this library has CUDA";
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mamba::selective_scan", "");
  const auto call = [&] {
    std::vector<c10::IValue> stack = dense().values();
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CUDA), &stack);
  };
  expect_error(call, Kind::kNotImplemented,
               "selective_scan: expected u to be a CPU tensor in a library built without CUDA, but got a CUDA tensor; "
               "build mamba_ops with nvcc on the PATH, or with -DMAMBA_OPS_CUDA=ON to be told what is missing");
}

/// The backward's own arguments.
TEST(ScanErrors, OfTheBackward) {
  const ScanCall call = dense();
  const auto forward = call_by_name("mamba::_selective_scan_fwd", call.values());
  const Tensor dout = forward[0].toTensor(), dlast_state = forward[1].toTensor(), checkpoints = forward[2].toTensor();
  const auto backward = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    std::vector<c10::IValue> arguments = {a, b};
    for (const c10::IValue& x : call.values()) arguments.push_back(x);
    arguments.emplace_back(c);
    arguments.emplace_back(std::vector<bool>(9, true));
    return call_by_name("mamba::_selective_scan_bwd", arguments);
  };
  EXPECT_EQ(backward(dout, dlast_state, checkpoints).size(), 9u);
  const std::string op = "_selective_scan_bwd: ";
  const auto expect = [&](const Tensor& a, const Tensor& b, const Tensor& c, Kind kind, const std::string& text) {
    expect_error([&] { backward(a, b, c); }, kind, op + text);
  };
  expect(zeros({2, 6, 8}), dlast_state, checkpoints, Kind::kValue,
         "expected dout to have the shape of u (batch, dim, length) = [2, 6, 7], but got [2, 6, 8]");
  expect(zeros({2, 6, 7}, at::kHalf), dlast_state, checkpoints, Kind::kType,
         "expected dout to have the dtype of u (float32), but got float16");
  expect(dout, zeros({2, 6, 5}), checkpoints, Kind::kValue,
         "expected dlast_state to have the shape (sequences, dim, dstate) = [2, 6, 4], but got [2, 6, 5]");
  expect(dout, zeros({2, 6, 4}, at::kDouble), checkpoints, Kind::kType,
         "expected dlast_state to have the dtype of last_state (float32), but got float64");
  expect(dout, dlast_state, zeros({2, 5, 6}), Kind::kValue,
         "expected checkpoints to have the shape (batch, slots x dstate, dim) = [2, 4, 6], but got [2, 5, 6]");
  expect(dout, dlast_state, zeros({2, 4, 6}, at::kDouble), Kind::kType,
         "expected checkpoints to have the dtype of last_state (float32), but got float64");
  expect(dout, dlast_state, checkpoints.to(at::kMeta), Kind::kOther,
         "expected checkpoints to be on the device of u (cpu), but got meta; move all tensors of a call to one device");
}

}  // namespace

}  // namespace mamba::tests
