// selective_scan and selective_scan_with_state through the dispatcher, over the whole case table: values, gradients,
// bits, layouts, parameter dtypes.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <functional>
#include <limits>

#include "operators/scan_call.h"

namespace mamba::tests {

namespace {

void expect_results(const ScanCall& call) {
  const auto [out, last_state] = run(call);
  const auto [expected_out, expected_state] = oracle(call);
  const at::ScalarType wide = call.u.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  EXPECT_EQ(out.scalar_type(), call.u.scalar_type());
  EXPECT_EQ(out.strides(), at::empty_like(call.u).strides());
  EXPECT_EQ(last_state.scalar_type(), call.A.is_complex() ? call.A.scalar_type() : wide);
  EXPECT_TRUE(last_state.is_contiguous());
  EXPECT_TRUE(is_close(out, expected_out, result_closeness(out.scalar_type())));
  EXPECT_TRUE(is_close(last_state, expected_state, result_closeness(last_state.scalar_type())));
}

void expect_gradients(const ScanCall& call) {
  const std::vector<Tensor> actual = gradients(call, run), expected = gradients(widened(call), oracle);
  ScanCall inputs = call;
  size_t i = 0;
  for (const auto& [name, x] : inputs.differentiable()) {
    SCOPED_TRACE(std::string("gradient of ") + name);
    if (x->defined()) {
      EXPECT_EQ(actual[i].scalar_type(), x->scalar_type());
      EXPECT_TRUE(is_close(actual[i], expected[i], gradient_closeness(x->scalar_type())));
    }
    ++i;
  }
}

using Param = std::tuple<Target, Case>;

class Scan : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override { MAMBA_SKIP_WITHOUT_DEVICE(target()); }
  const Target& target() const { return std::get<0>(GetParam()); }
  const Case& problem() const { return std::get<1>(GetParam()); }
};

TEST_P(Scan, MatchesTheOracle) {
  ScanCall call = make_call(problem(), target());
  ScanCall before = call.with([](const Tensor& x) { return x.clone(); });
  expect_results(call);
  EXPECT_TRUE(has_bits_of(run_scan(call), std::get<0>(run(call))));
  const auto inputs = call.differentiable(), originals = before.differentiable();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& [name, x] = inputs[i];
    if (!x->defined()) continue;
    EXPECT_TRUE(has_bits_of(*x, *originals[i].second)) << name << " was changed";
  }
}

TEST_P(Scan, GradientsMatchTheOracles) {
  expect_gradients(make_call(problem(), target(), /*seed=*/2));
}

TEST_P(Scan, HasTheSameBitsTwiceAndWithGradients) {
  const ScanCall call = make_call(problem(), target());
  const auto [out, last_state] = run(call);
  const std::vector<Tensor> first = gradients(call, run), second = gradients(call, run);
  for (size_t i = 0; i < first.size(); ++i) {
    if (!first[i].defined()) continue;
    EXPECT_TRUE(has_bits_of(second[i], first[i])) << "gradient " << i;
  }
  ScanCall differentiable = call;
  differentiable.u = call.u.detach().requires_grad_();
  const auto [other_out, other_state] = run(differentiable);
  EXPECT_TRUE(has_bits_of(other_out, out));
  EXPECT_TRUE(has_bits_of(other_state, last_state));
}

std::string param_name(const testing::TestParamInfo<Param>& info) {
  return name_of(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(Cpu, Scan, testing::Combine(testing::ValuesIn(cpu_targets()), testing::ValuesIn(case_table())),
                         param_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Scan,
                         testing::Combine(testing::ValuesIn(cuda_targets()), testing::ValuesIn(case_table())),
                         param_name);

/// The same values in other strides, with NaN around them, or repeated by a stride of 0.
using Relayout = std::function<Tensor(const Tensor&)>;

Tensor in_a_larger_buffer(const Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() += 3;
  const Tensor buffer = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), x.options());
  return buffer.narrow(-1, 1, x.size(-1)).copy_(x);
}
Tensor every_other(const Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() *= 2;
  return at::full(sizes, std::numeric_limits<double>::quiet_NaN(), x.options()).slice(-1, 0, std::nullopt, 2).copy_(x);
}
const std::vector<std::pair<const char*, Relayout>> kLayouts = {
    {"channel_last", [](const Tensor& x) { return x.transpose(-1, -2).contiguous().transpose(-1, -2); }},
    {"length_first", [](const Tensor& x) { return x.movedim(-1, 0).contiguous().movedim(0, -1); }},
    {"batch_innermost", [](const Tensor& x) { return x.movedim(0, -1).contiguous().movedim(-1, 0); }},
    {"sliced", in_a_larger_buffer},
    {"sliced_channel_last", [](const Tensor& x) { return in_a_larger_buffer(x.transpose(-1, -2)).transpose(-1, -2); }},
    {"every_other", every_other},
    {"expanded_first", [](const Tensor& x) { return x.narrow(0, 0, 1).expand_as(x); }},
    {"expanded_second", [](const Tensor& x) { return x.narrow(1, 0, 1).expand_as(x); }},
    {"expanded_last", [](const Tensor& x) { return x.narrow(-1, 0, 1).expand_as(x); }}};

class Layouts : public testing::TestWithParam<std::tuple<Target, std::string>> {};

TEST_P(Layouts, DoNotMatter) {
  const auto& [target, name] = GetParam();
  MAMBA_SKIP_WITHOUT_DEVICE(target);
  const ScanCall call = make_call(case_named(name), target);
  for (const auto& [layout, relayout] : kLayouts) {
    SCOPED_TRACE(layout);
    const Relayout& f = relayout;
    const ScanCall changed = call.with([&](const Tensor& x) { return x.dim() > 1 ? f(x) : x; });
    expect_results(changed);
    expect_gradients(changed);
  }
}

std::string layouts_name(const testing::TestParamInfo<std::tuple<Target, std::string>>& info) {
  return name_of(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
}
const auto kLayoutCases = testing::Values("without_D", "groups_differ", "constant", "complex_groups_reverse", "packed",
                                          "packed_gaps_reverse", "per_channel_all", "reverse_all");
INSTANTIATE_TEST_SUITE_P(Cpu, Layouts, testing::Combine(testing::ValuesIn(cpu_targets()), kLayoutCases), layouts_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Layouts, testing::Combine(testing::ValuesIn(cuda_targets()), kLayoutCases),
                         layouts_name);

class Parameters : public testing::TestWithParam<std::tuple<Target, at::ScalarType>> {};

TEST_P(Parameters, HaveTheirOwnDtype) {
  const auto& [target, dtype] = GetParam();
  MAMBA_SKIP_WITHOUT_DEVICE(target);
  if (dtype == at::kDouble && target.dtype != at::kDouble) return;  // refused: a row of the errors
  for (const char* name : {"without_z", "constant", "packed"}) {
    SCOPED_TRACE(name);
    const ScanCall call = make_call(case_named(name), target, /*seed=*/3, dtype);
    expect_results(call);
    expect_gradients(call);
  }
}

std::string parameters_name(const testing::TestParamInfo<std::tuple<Target, at::ScalarType>>& info) {
  return name_of(std::get<0>(info.param)) + "_parameters_" + name_of(std::get<1>(info.param));
}
const auto kDtypes = testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16);
INSTANTIATE_TEST_SUITE_P(Cpu, Parameters, testing::Combine(testing::ValuesIn(cpu_targets()), kDtypes), parameters_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Parameters, testing::Combine(testing::ValuesIn(cuda_targets()), kDtypes),
                         parameters_name);

}  // namespace

}  // namespace mamba::tests
