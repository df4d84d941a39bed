// selective_state_update through the dispatcher.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "operators/update_call.h"

namespace mamba::tests {

namespace {

at::ScalarType coarser(at::ScalarType x, at::ScalarType y) {
  return result_closeness(x).relative > result_closeness(y).relative ? x : y;
}

void expect_step(UpdateCall call) {
  const auto [expected_out, expected_state] = oracle(call);
  const Tensor out = run(call);
  EXPECT_EQ(out.scalar_type(), call.x.scalar_type());
  EXPECT_EQ(out.strides(), at::empty_like(call.x).strides());
  const at::ScalarType computed = call.x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  EXPECT_TRUE(is_close(out, expected_out, result_closeness(out.scalar_type())));
  EXPECT_TRUE(is_close(call.state, expected_state, result_closeness(coarser(computed, call.state.scalar_type()))));
}

class Update : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override { MAMBA_SKIP_WITHOUT_DEVICE(GetParam()); }

  Tensor indices(std::vector<int64_t> rows, at::ScalarType dtype = at::kLong) const {
    return at::tensor(rows, at::kLong).to(GetParam().device, dtype);
  }
  static UpdateShape heads() {
    UpdateShape shape;
    shape.channels = {4, 3};
    shape.groups = 2;
    return shape;
  }
};

TEST_P(Update, MatchesTheOracleInEveryShape) {
  std::vector<UpdateShape> shapes = {{}, heads()};
  for (const int64_t groups : {1, 3, 6}) shapes.push_back({{6}, 3, 5, 3, groups});
  for (const int64_t dstate : {0, 1, 16, 17, 300}) shapes.push_back({{7}, 2, dstate, 2, 0});
  for (const int64_t dim : {0, 1, 33, 129}) shapes.push_back({{dim}, 2, 4, 2, 0});
  shapes.push_back({{6}, 0, 5, 0, 0});
  for (const UpdateShape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.channels[0] << " channels, dstate " << shape.dstate << ", groups "
                                    << shape.groups << ", batch " << shape.batch);
    expect_step(make_update(shape, GetParam()));
  }
}

TEST_P(Update, EachOptionMayBeAbsent) {
  for (const UpdateShape& shape : {UpdateShape(), heads()}) {
    for (int absent = 0; absent < 16; ++absent) {
      UpdateCall call = make_update(shape, GetParam());
      if ((absent & 1) != 0) call.D = Tensor();
      if ((absent & 2) != 0) call.z = Tensor();
      if ((absent & 4) != 0) call.dt_bias = Tensor();
      if ((absent & 8) != 0) call.dt_softplus = false;
      if (!call.dt_softplus) call.dt = call.dt.abs();
      SCOPED_TRACE(absent);
      expect_step(call);
    }
  }
}

TEST_P(Update, TheStateAndTheParametersHaveTheirOwnDtypes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    SCOPED_TRACE(name_of(dtype));
    expect_step(make_update(heads(), GetParam(), /*seed=*/2, /*state_dtype=*/dtype));
    if (dtype == at::kDouble && GetParam().dtype != at::kDouble) continue;
    UpdateCall call = make_update(heads(), GetParam());
    for (Tensor* x : {&call.A, &call.D, &call.dt_bias}) *x = x->to(dtype);
    expect_step(call);
  }
  UpdateCall call = make_update(heads(), GetParam());
  call.B = call.B.to(at::kFloat);
  expect_step(call);
  call.C = call.C.to(at::kFloat);
  expect_step(call);
}

TEST_P(Update, ParametersMayBeExpanded) {
  UpdateCall call = make_update(heads(), GetParam());
  call.A = call.A.narrow(1, 0, 1).narrow(2, 0, 1).expand({4, 3, 5});
  call.D = call.D.narrow(1, 0, 1).expand({4, 3});
  call.dt_bias = call.dt_bias.narrow(1, 0, 1).expand({4, 3});
  call.dt = call.dt.narrow(2, 0, 1).expand({3, 4, 3});
  expect_step(call);
}

TEST_P(Update, IndicesChooseTheSlots) {
  UpdateShape shape;
  shape.slots = 7;
  for (const std::vector<int64_t>& rows : std::vector<std::vector<int64_t>>{{4, 0, 2}, {1, -1, 6}, {-1, -1, -1}}) {
    for (const at::ScalarType dtype : {at::kInt, at::kLong}) {
      UpdateCall call = make_update(shape, GetParam());
      call.state_batch_indices = indices(rows, dtype);
      expect_step(call);
      const Tensor before = call.state.clone();
      run(call);
      for (int64_t slot = 0; slot < 7; ++slot) {
        if (std::find(rows.begin(), rows.end(), slot) != rows.end()) continue;
        EXPECT_TRUE(has_bits_of(call.state[slot], before[slot])) << "slot " << slot;
      }
    }
  }
}

TEST_P(Update, PaddingIsZeroWhateverItHolds) {
  UpdateShape shape;
  shape.slots = 5;
  UpdateCall call = make_update(shape, GetParam());
  call.state_batch_indices = indices({2, -1, 0});
  for (Tensor* x : {&call.x, &call.dt, &call.z, &call.B, &call.C})
    (*x)[1].fill_(std::numeric_limits<float>::quiet_NaN());
  const Tensor before = call.state.clone(), out = run(call);
  EXPECT_FALSE(out[1].any().item<bool>());
  EXPECT_TRUE(out.isfinite().all().item<bool>());
  for (const int64_t slot : {1, 3, 4}) EXPECT_TRUE(has_bits_of(call.state[slot], before[slot]));
}

TEST_P(Update, ASlotNamedTwiceHarmsNoOther) {
  UpdateShape shape;
  shape.slots = 6;
  shape.batch = 4;
  UpdateCall call = make_update(shape, GetParam());
  call.state_batch_indices = indices({2, 5, 2, 2});
  const auto [expected_out, expected_state] = oracle(call);
  const Tensor before = call.state.clone(), out = run(call);
  for (const int64_t slot : {0, 1, 3, 4}) EXPECT_TRUE(has_bits_of(call.state[slot], before[slot]));
  EXPECT_TRUE(is_close(out[1], expected_out[1], result_closeness(out.scalar_type())));
  EXPECT_TRUE(is_close(call.state[5], expected_state[5], result_closeness(call.state.scalar_type())));
}

TEST_P(Update, WritesThroughTheStridesOfAView) {
  UpdateCall call = make_update({}, GetParam());
  const Tensor large = at::zeros({3, 5, 2, 6}, call.state.options());
  const Tensor state = large.select(2, 1).transpose(1, 2);  // (3, 6, 5) with the states far apart
  state.copy_(call.state);
  call.state = state;
  expect_step(call);
  EXPECT_FALSE(large.select(2, 0).any().item<bool>()) << "written outside the view";
}

TEST_P(Update, IsTheScanOfOneStep) {
  UpdateShape shape;
  shape.groups = 3;
  UpdateCall step = make_update(shape, GetParam());
  const auto at_one = [](const Tensor& x) { return x.unsqueeze(-1); };
  ScanCall scan;
  scan.u = at_one(step.x);
  scan.delta = at_one(step.dt);
  scan.A = step.A;
  scan.B = at_one(step.B);
  scan.C = at_one(step.C);
  scan.D = step.D;
  scan.z = at_one(step.z);
  scan.delta_bias = step.dt_bias;
  scan.delta_softplus = true;
  scan.initial_state = step.state.clone();
  const auto [out, last_state] = run(scan);
  Closeness closeness = result_closeness(out.scalar_type());
  closeness.relative *= 2;  // either may have been rounded to its own side
  EXPECT_TRUE(is_close(run(step), out.select(-1, 0).to(at::kDouble), closeness));
  EXPECT_TRUE(is_close(step.state, last_state.to(at::kDouble), result_closeness(last_state.scalar_type())));
}

TEST_P(Update, ManyStepsAreTheScanOfTheSequence) {
  const Target target{GetParam().device, at::kDouble};
  std::vector<Tensor> u, delta, z, B, C, outs;
  const UpdateCall first = make_update({}, target);
  UpdateCall step = first.clone();
  for (uint64_t t = 0; t < 12; ++t) {
    const UpdateCall next = make_update({}, target, t);
    step.x = next.x;
    step.dt = next.dt;
    step.z = next.z;
    step.B = next.B;
    step.C = next.C;
    outs.push_back(run(step));
    u.push_back(next.x);
    delta.push_back(next.dt);
    z.push_back(next.z);
    B.push_back(next.B);
    C.push_back(next.C);
  }
  ScanCall scan;
  scan.u = at::stack(u, -1);
  scan.delta = at::stack(delta, -1);
  scan.z = at::stack(z, -1);
  scan.B = at::stack(B, -1);
  scan.C = at::stack(C, -1);
  scan.A = first.A;
  scan.D = first.D;
  scan.delta_bias = first.dt_bias;
  scan.delta_softplus = true;
  scan.initial_state = first.state;
  const auto [out, last_state] = run(scan);
  EXPECT_TRUE(is_close(at::stack(outs, -1), out, result_closeness(at::kDouble)));
  EXPECT_TRUE(is_close(step.state, last_state, result_closeness(at::kDouble)));
}

TEST_P(Update, TheStateKnowsThatItWasChanged) {
  UpdateCall call = make_update({}, GetParam());
  const auto version = call.state._version();
  run(call);
  EXPECT_GT(call.state._version(), version);
}

TEST_P(Update, HasNoGradient) {
  const UpdateCall call = make_update({}, GetParam());
  UpdateCall names = call;
  for (const auto& [name, x] : names.tensors()) {
    if (!x->defined() || !x->is_floating_point()) continue;
    SCOPED_TRACE(name);
    UpdateCall refused = call.clone();
    const Tensor before = refused.state.clone();
    for (const auto& [other, y] : refused.tensors()) {
      if (std::string(other) == name) *y = y->detach().requires_grad_();
    }
    EXPECT_THROW(run(refused), c10::NotImplementedError);
    EXPECT_TRUE(has_bits_of(refused.state, before));
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(run(refused).requires_grad());
  }
}

/// On CUDA the values are not read back; on the CPU it is an error, and a row of the errors.
TEST(CudaUpdate, SlotsOutOfRangeArePadding) {
  for (const Target& target : cuda_targets()) {
    MAMBA_SKIP_WITHOUT_DEVICE(target);
    UpdateCall call = make_update({}, target);
    call.state_batch_indices = at::tensor(std::vector<int64_t>{1, 3, int64_t{1} << 40}, at::kLong).to(at::kCUDA);
    expect_step(call);
  }
}

std::string target_name(const testing::TestParamInfo<Target>& info) {
  return name_of(info.param);
}
INSTANTIATE_TEST_SUITE_P(Cpu, Update, testing::ValuesIn(cpu_targets()), target_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Update, testing::ValuesIn(cuda_targets()), target_name);

}  // namespace

}  // namespace mamba::tests
