// Numbers and sizes at their limits: overflow, NaN and Inf, growing states, sizes beyond those of other
// implementations.
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "operators/scan_call.h"

namespace mamba::tests {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

class Limits : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override { MAMBA_SKIP_WITHOUT_DEVICE(GetParam()); }

  ScanCall call(const Case& c) const { return make_call(c, GetParam()); }
  static Case small() { return Case("limits").size(2, 6, 70, 5); }
};

bool all_finite(const Tensor& x) {
  return at::isfinite(x).all().item<bool>();
}

TEST_P(Limits, AVeryNegativeExponentForgetsTheState) {
  ScanCall c = call(small().with(kD | kInitialState));
  c.A = at::full_like(c.A, -1e30);
  c.delta = at::full_like(c.delta, 1000);
  const auto [out, last_state] = run(c);
  const auto [expected_out, expected_state] = oracle(c);
  EXPECT_TRUE(is_close(out, expected_out, result_closeness(out.scalar_type())));
  EXPECT_TRUE(is_close(last_state, expected_state, result_closeness(last_state.scalar_type())));
  for (const Tensor& gradient : gradients(c, run)) {
    if (!gradient.defined()) continue;
    EXPECT_TRUE(all_finite(gradient));
  }
}

/// Products of decays overflow here, though no state does: all is zero until the last step.
TEST_P(Limits, GrowingDecaysNeverMeetAZeroState) {
  for (const unsigned option : {kPlain, static_cast<unsigned>(kReverse)}) {
    ScanCall c = call(small().with(option));
    const int64_t last = option == kReverse ? 0 : 69;
    c.A = at::full_like(c.A, 3);
    c.delta = at::full_like(c.delta, 5);
    const Tensor u = at::zeros_like(c.u);
    u.select(-1, last).copy_(c.u.select(-1, last));
    c.u = u;
    const auto [out, last_state] = run(c);
    const auto [expected_out, expected_state] = oracle(c);
    EXPECT_TRUE(is_close(out, expected_out, result_closeness(out.scalar_type())));
    EXPECT_TRUE(is_close(last_state, expected_state, result_closeness(last_state.scalar_type())));
  }
}

TEST_P(Limits, GrowingStatesFollowTheMaths) {
  ScanCall c = call(small().with(kPlain));
  c.A = at::full_like(c.A, 0.25);
  c.C = c.C * 0.001;
  const auto [out, last_state] = run(c);
  const auto [expected_out, expected_state] = oracle(c);
  EXPECT_TRUE(is_close(out, expected_out, gradient_closeness(out.scalar_type())));
  EXPECT_TRUE(is_close(last_state, expected_state, gradient_closeness(last_state.scalar_type())));
}

/// Where out may differ from that of clean inputs when something is spoilt from `from` on in `channels` of batch 0.
void expect_spoilt_only(const Tensor& out, const Tensor& clean, int64_t first_channel, int64_t channels, int64_t from) {
  for (int64_t batch = 0; batch < clean.size(0); ++batch) {
    for (int64_t d = 0; d < clean.size(1); ++d) {
      const bool is_spoilt = batch == 0 && d >= first_channel && d < first_channel + channels;
      const int64_t intact = is_spoilt ? from : clean.size(2);
      EXPECT_TRUE(has_bits_of(out[batch][d].narrow(0, 0, intact), clean[batch][d].narrow(0, 0, intact)))
          << "batch " << batch << ", channel " << d;
      if (is_spoilt) {
        EXPECT_FALSE(at::isfinite(out[batch][d].narrow(0, from, clean.size(2) - from)).any().item<bool>())
            << "what the maths spoils is hidden in channel " << d;
      }
    }
  }
}

TEST_P(Limits, ABadNumberReachesOnlyWhatTheMathsSays) {
  const ScanCall clean = call(small().with(kPlain).coefficients(grouped(2), shared()));
  const Tensor expected = run_scan(clean);
  for (const float bad : {kNan, kInfinity}) {
    for (const int64_t t : {0, 33, 69}) {
      SCOPED_TRACE(testing::Message() << bad << " at " << t);
      ScanCall c = clean;
      c.u = clean.u.clone();
      c.u[0][2][t] = bad;
      expect_spoilt_only(run_scan(c), expected, 2, 1, t);
      c = clean;
      c.B = clean.B.clone();
      c.B[0][1].select(-1, t).fill_(bad);
      expect_spoilt_only(run_scan(c), expected, 3, 3, t);
    }
  }
}

TEST_P(Limits, ABadGateReachesOnlyItsStep) {
  const ScanCall clean = call(small());
  ScanCall c = clean;
  c.z = clean.z.clone();
  c.z[1][3][40] = kNan;
  Tensor out = run_scan(c);
  EXPECT_FALSE(all_finite(out[1][3][40]));
  out[1][3][40] = run_scan(clean)[1][3][40];
  EXPECT_TRUE(has_bits_of(out, run_scan(clean)));
}

TEST_P(Limits, NothingLeaksAcrossSequencesOrFromGaps) {
  for (const unsigned option : {kAll, kAll | kReverse}) {
    Case packing("leaks");
    packing.packed(70, {2, 30, 30, 64}).with(option);
    const ScanCall clean = call(packing);
    ScanCall c = clean;
    for (Tensor* x : {&c.u, &c.delta, &c.B, &c.C, &c.z}) {
      *x = x->clone();
      x->slice(-1, 0, 2).fill_(kNan);
      x->slice(-1, 64, 70).fill_(kInfinity);
    }
    EXPECT_TRUE(has_bits_of(run_scan(c), run_scan(clean)));
    EXPECT_TRUE(has_bits_of(std::get<1>(run(c)), std::get<1>(run(clean))));
    const std::vector<Tensor> actual = gradients(c, run), expected = gradients(clean, run);
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(has_bits_of(actual[i], expected[i])) << "gradient " << i;

    c.u.slice(-1, 2, 30).fill_(kNan);
    const Tensor second = run_scan(c).slice(-1, 30, 64);
    EXPECT_TRUE(has_bits_of(second, run_scan(clean).slice(-1, 30, 64)));
    EXPECT_TRUE(has_bits_of(std::get<1>(run(c)).narrow(0, 1, 2), std::get<1>(run(clean)).narrow(0, 1, 2)));
  }
}

TEST_P(Limits, SizesHaveNone) {
  for (const Case& c : {Case("dstate").size(1, 2, 5, 300), Case("dim").size(1, 70000, 2, 1),
                        Case("batch").size(70000, 1, 2, 1), Case("length").size(1, 2, 5000, 2)}) {
    SCOPED_TRACE(c.name);
    const ScanCall call = make_call(c, GetParam());
    const auto [out, last_state] = run(call);
    const auto [expected_out, expected_state] = oracle(call);
    EXPECT_TRUE(is_close(out, expected_out, result_closeness(out.scalar_type())));
    EXPECT_TRUE(is_close(last_state, expected_state, result_closeness(last_state.scalar_type())));
  }
}

std::string target_name(const testing::TestParamInfo<Target>& info) {
  return name_of(info.param);
}
INSTANTIATE_TEST_SUITE_P(Cpu, Limits, testing::ValuesIn(cpu_targets()), target_name);
INSTANTIATE_TEST_SUITE_P(Cuda, Limits, testing::ValuesIn(cuda_targets()), target_name);

}  // namespace

}  // namespace mamba::tests
