// The modes of torch around the operators: autocast, inference, meta tensors, calls by name, and higher derivatives.
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/values.h"
#include "operators/update_call.h"

namespace mamba::tests {

namespace {

/// Autocast on one device, as long as this lives.
class Autocast {
 public:
  Autocast(at::DeviceType device, at::ScalarType dtype)
      : device_(device), before_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, dtype);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::set_autocast_dtype(device_, before_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  at::ScalarType before_;
};

class Modes : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override { MAMBA_SKIP_WITHOUT_DEVICE((Target{GetParam(), at::kFloat})); }
  Target target(at::ScalarType dtype = at::kFloat) const { return {GetParam(), dtype}; }
};

TEST_P(Modes, AutocastLowersActivationsAndNothingElse) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const char* name : {"without_z", "constant_B", "groups_differ", "complex_all"}) {
      SCOPED_TRACE(name);
      const ScanCall call = make_call(case_named(name), target());
      ScanCall lowered = call;
      for (Tensor* x : {&lowered.u, &lowered.delta, &lowered.z, &lowered.B, &lowered.C}) {
        if (x->defined() && x->dim() > 2 && !x->is_complex()) *x = x->to(dtype);
      }
      const auto [expected, expected_state] = run(lowered);
      const Autocast autocast(GetParam(), dtype);
      const auto [out, last_state] = run(call);
      EXPECT_EQ(out.scalar_type(), dtype);
      EXPECT_TRUE(has_bits_of(out, expected));
      EXPECT_TRUE(has_bits_of(last_state, expected_state));
      EXPECT_TRUE(has_bits_of(run_scan(call), expected));
    }
  }
}

TEST_P(Modes, AutocastGradientsReachTheOriginals) {
  const ScanCall call = make_call(case_named("groups_differ"), target());
  const Autocast autocast(GetParam(), at::kBFloat16);
  const std::vector<Tensor> found = gradients(call, run);
  ScanCall inputs = call;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), inputs.differentiable()[i].second->scalar_type()) << "gradient " << i;
    EXPECT_TRUE(found[i].any().item<bool>()) << "gradient " << i;
  }
}

TEST_P(Modes, AutocastLeavesFloat64Alone) {
  const ScanCall call = make_call(case_named("groups_differ"), target(at::kDouble));
  UpdateCall step = make_update({}, target(at::kDouble)), same = step.clone();
  const Tensor expected = run_scan(call), expected_step = run(same);
  const Autocast autocast(GetParam(), at::kBFloat16);
  EXPECT_TRUE(has_bits_of(run_scan(call), expected));
  EXPECT_TRUE(has_bits_of(run(step), expected_step));
}

TEST_P(Modes, AutocastLowersAStepAndNotItsState) {
  UpdateCall step = make_update({}, target()), lowered = step.clone();
  for (Tensor* x : {&lowered.x, &lowered.dt, &lowered.B, &lowered.C, &lowered.z}) *x = x->to(at::kBFloat16);
  const Tensor expected = run(lowered);
  const Autocast autocast(GetParam(), at::kBFloat16);
  const Tensor out = run(step);
  EXPECT_TRUE(has_bits_of(out, expected));
  EXPECT_TRUE(has_bits_of(step.state, lowered.state));
}

TEST_P(Modes, InferenceModeGivesTheSameBits) {
  const ScanCall call = make_call(case_named("packed"), target());
  UpdateCall step = make_update({}, target()), same = step.clone();
  const auto [expected, expected_state] = run(call);
  const Tensor expected_step = run(same);
  step.A.requires_grad_();
  const c10::InferenceMode inference;
  const auto [out, last_state] = run(call);
  EXPECT_TRUE(out.is_inference());
  EXPECT_TRUE(has_bits_of(out, expected));
  EXPECT_TRUE(has_bits_of(last_state, expected_state));
  EXPECT_TRUE(has_bits_of(run(step), expected_step));
  EXPECT_TRUE(has_bits_of(step.state, same.state));
}

TEST_P(Modes, WithoutGradModeNothingIsRecorded) {
  ScanCall call = make_call(case_named("packed"), target());
  call.A.requires_grad_();
  EXPECT_TRUE(run_scan(call).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(run_scan(call).requires_grad());
}

std::vector<c10::IValue> backward_arguments(const std::vector<c10::IValue>& forward, const ScanCall& call,
                                            std::vector<bool> mask) {
  std::vector<c10::IValue> arguments = {forward[0], forward[1]};
  for (const c10::IValue& x : call.values()) arguments.push_back(x);
  arguments.push_back(forward[2]);
  arguments.emplace_back(std::move(mask));
  return arguments;
}

void expect_alike(const std::vector<c10::IValue>& meta, const std::vector<c10::IValue>& real) {
  ASSERT_EQ(meta.size(), real.size());
  for (size_t i = 0; i < meta.size(); ++i) {
    const Tensor &x = meta[i].toTensor(), &y = real[i].toTensor();
    EXPECT_TRUE(x.is_meta());
    EXPECT_EQ(x.scalar_type(), y.scalar_type()) << "result " << i;
    EXPECT_EQ(x.sizes(), y.sizes()) << "result " << i;
    EXPECT_EQ(x.strides(), y.strides()) << "result " << i;
  }
}

TEST_P(Modes, MetaTensorsHaveTheShapesOfRealOnes) {
  const std::vector<bool> all(9, true), some = {true, false, true, false, true, false, false, true, false};
  for (const Case& c : case_table()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      for (const bool is_channel_last : {false, true}) {
        SCOPED_TRACE(c.name + " " + name_of(dtype));
        const ScanCall real = make_call(c, target(dtype)).with([&](const Tensor& x) {
          return is_channel_last && x.dim() == 3 ? x.transpose(1, 2).contiguous().transpose(1, 2) : x;
        });
        const ScanCall meta = real.to(at::kMeta);
        for (const char* op : {"mamba::selective_scan", "mamba::selective_scan_with_state"}) {
          expect_alike(call_by_name(op, meta.values()), call_by_name(op, real.values()));
        }
        const auto forward = call_by_name("mamba::_selective_scan_fwd", real.values());
        const auto meta_forward = call_by_name("mamba::_selective_scan_fwd", meta.values());
        expect_alike(meta_forward, forward);
        for (const auto& mask : {all, some}) {
          expect_alike(call_by_name("mamba::_selective_scan_bwd", backward_arguments(meta_forward, meta, mask)),
                       call_by_name("mamba::_selective_scan_bwd", backward_arguments(forward, real, mask)));
        }
      }
    }
  }
}

TEST_P(Modes, MetaStepsHaveTheShapesOfRealOnes) {
  UpdateShape heads;
  heads.channels = {4, 3};
  for (const UpdateShape& shape : {UpdateShape(), heads}) {
    const UpdateCall real = make_update(shape, target(at::kBFloat16));
    UpdateCall meta = real;
    for (const auto& [name, x] : meta.tensors()) {
      if (x->defined()) *x = x->to(at::kMeta);
    }
    expect_alike(call_by_name("mamba::selective_state_update", meta.values()),
                 call_by_name("mamba::selective_state_update", real.values()));
  }
}

TEST_P(Modes, CallsByNameAreThePublicFunctions) {
  const ScanCall call = make_call(case_named("packed_groups"), target());
  const auto [out, last_state] = run(call);
  EXPECT_TRUE(has_bits_of(call_by_name("mamba::selective_scan", call.values())[0].toTensor(), out));
  const auto by_name = call_by_name("mamba::selective_scan_with_state", call.values());
  EXPECT_TRUE(has_bits_of(by_name[0].toTensor(), out));
  EXPECT_TRUE(has_bits_of(by_name[1].toTensor(), last_state));
  UpdateCall step = make_update({}, target()), same = step.clone();
  EXPECT_TRUE(has_bits_of(call_by_name("mamba::selective_state_update", step.values())[0].toTensor(), run(same)));
  EXPECT_TRUE(has_bits_of(step.state, same.state));
}

TEST_P(Modes, WhatTheMaskLeavesOutIsEmptyAndTheRestIsTheSame) {
  for (const char* name : {"groups_differ", "packed_gaps", "complex_constant"}) {
    SCOPED_TRACE(name);
    const ScanCall call = make_call(case_named(name), target());
    const auto forward = call_by_name("mamba::_selective_scan_fwd", call.values());
    const auto gradients_of = [&](std::vector<bool> mask) {
      return call_by_name("mamba::_selective_scan_bwd", backward_arguments(forward, call, std::move(mask)));
    };
    const auto all = gradients_of(std::vector<bool>(9, true));
    for (size_t chosen = 0; chosen < 9; ++chosen) {
      std::vector<bool> mask(9);
      mask[chosen] = true;
      const auto one = gradients_of(mask);
      for (size_t i = 0; i < 9; ++i) {
        if (i == chosen) {
          EXPECT_TRUE(has_bits_of(one[i].toTensor(), all[i].toTensor())) << "gradient " << i;
        } else {
          EXPECT_EQ(one[i].toTensor().sizes(), at::IntArrayRef({0})) << "gradient " << i;
        }
      }
    }
  }
}

/// The gradient of a weighted sum of all gradients.
std::vector<Tensor> second_gradients(ScanCall call, OutAndState (*function)(const ScanCall&)) {
  std::vector<Tensor> inputs;
  for (const auto& [name, x] : call.differentiable()) {
    if (!x->defined()) continue;
    *x = x->detach().requires_grad_();
    inputs.push_back(*x);
  }
  const auto [out, last_state] = function(call);
  const Tensor state_loss = last_state.is_complex() ? last_state.abs().square().sum() : last_state.square().sum();
  const auto first = torch::autograd::grad({out.square().sum() + state_loss}, inputs, {}, std::nullopt,
                                           /*create_graph=*/true);
  Tensor loss = at::zeros_like(out.sum());
  for (const Tensor& x : first) loss = loss + (x.is_complex() ? x.abs() : x).square().sum();
  return torch::autograd::grad({loss}, inputs);
}

TEST_P(Modes, SecondDerivativesMatchTheOracles) {
  for (const char* name :
       {"length_33", "groups_differ", "complex_groups_reverse", "packed_gaps_reverse", "constant", "per_channel_all"}) {
    SCOPED_TRACE(name);
    const ScanCall call = make_call(case_named(name), target(at::kDouble));
    const std::vector<Tensor> actual = second_gradients(call, run), expected = second_gradients(call, oracle);
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(is_close(actual[i], expected[i], {1e-8, 1e-9})) << "gradient " << i;
    }
  }
}

std::string device_name(const testing::TestParamInfo<at::DeviceType>& info) {
  return c10::DeviceTypeName(info.param, /*lower_case=*/true);
}
INSTANTIATE_TEST_SUITE_P(Cpu, Modes, testing::Values(at::kCPU), device_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Modes, testing::Values(at::kCUDA), device_name);

}  // namespace

}  // namespace mamba::tests
