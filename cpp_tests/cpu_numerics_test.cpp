// How exact the vectorised CPU scan is, at every number of states and channels, and where what is not finite, or hardly
// a number any more, goes. At the ISA level that MAMBA_OPS_CPU chooses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "generic/cpu.h"
#include "kernels/scan_problem.h"

namespace mamba::tests {

namespace {

namespace generic = kernels::generic::cpu;

constexpr CpuKernels kPlainLoop = {"plain loop", generic::forward_work, generic::forward, generic::backward_work,
                                   generic::backward};

void run(ScanProblem& problem, const CpuKernels& kernels = kCpuKernels) {
  run_forward(problem, /*with_checkpoints=*/true, kernels);
  run_backward(problem, kernels);
}

/// Inputs whose outputs are of order 1 to 10: standard normal, A = -exp(normal), C scaled by 1 / sqrt(dstate).
ScanValues contract_values(const Case& c, uint64_t seed) {
  ScanValues v = random_values(c, seed);
  Random random(seed + 1000);
  for (Number& x : v.A) x = -std::exp(random.normal());
  for (Number& x : v.C) x /= std::sqrt(static_cast<double>(c.dstate));
  return v;
}

/// Decays that stay near 1 over thousands of steps.
ScanValues slow_values(const Case& c, uint64_t seed) {
  ScanValues v = random_values(c, seed);
  for (size_t i = 0; i < v.A.size(); ++i) v.A[i] = -static_cast<double>(i % static_cast<size_t>(c.dstate) + 1);
  for (Number& x : v.delta) x = x.real() / 2 - 6;
  return v;
}

class Errors {
 public:
  void add(const Numbers& actual, const Numbers& exact) {
    ASSERT_EQ(actual.size(), exact.size());
    for (size_t i = 0; i < actual.size(); ++i) squares_ += std::norm(actual[i] - exact[i]);
  }
  double total() const { return std::sqrt(squares_); }

 private:
  double squares_ = 0;
};

struct Comparison {
  Errors ours, plain;

  void add(const Numbers& actual, const Numbers& of_plain_loop, const Numbers& exact) {
    ours.add(actual, exact);
    plain.add(of_plain_loop, exact);
  }
};

/// The RMS errors of all results and gradients, over several problems, against those of a sequential float32 loop.
template <class MakeValues>
void expect_errors_of_a_plain_loop(const Case& c, int problems, MakeValues&& make_values) {
  SCOPED_TRACE(c.name);
  Comparison out, last_state;
  std::vector<Comparison> gradients(std::size(kInputs));
  for (int seed = 1; seed <= problems; ++seed) {
    const ScanValues values = make_values(c, static_cast<uint64_t>(seed));
    const ScanResult weights = random_cotangents(c, static_cast<uint64_t>(seed));
    ScanProblem fast(c, ScalarType::kFloat32, Layout::kContiguous, values, weights);
    ScanProblem plain(c, ScalarType::kFloat32, Layout::kContiguous, values, weights);
    ScanProblem exact(c, ScalarType::kFloat64, Layout::kContiguous, fast.values, fast.cotangents);
    run(fast);
    run(plain, kPlainLoop);
    run(exact, kPlainLoop);
    out.add(fast.result().out, plain.result().out, exact.result().out);
    last_state.add(fast.result().last_state, plain.result().last_state, exact.result().last_state);
    const ScanValues ours = fast.gradients(), theirs = plain.gradients(), right = exact.gradients();
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto input = kInputs[i].second;
      gradients[i].add(ours.*input, theirs.*input, right.*input);
    }
  }
  EXPECT_LE(out.ours.total(), 2 * out.plain.total()) << "out";
  EXPECT_LE(last_state.ours.total(), 2 * last_state.plain.total()) << "last_state";
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_LE(gradients[i].ours.total(), 2 * gradients[i].plain.total()) << "gradient of " << kInputs[i].first;
  }
}

TEST(CpuNumerics, ErrorsAreThoseOfAPlainLoop) {
  expect_errors_of_a_plain_loop(Case("small").size(2, 4, 8, 4), 40, contract_values);
  expect_errors_of_a_plain_loop(Case("long").size(1, 32, 256, 16), 4, contract_values);
  expect_errors_of_a_plain_loop(Case("wide").size(8, 128, 64, 16), 1, contract_values);
  expect_errors_of_a_plain_loop(Case("reverse").size(1, 20, 300, 7).with(kAll | kReverse), 4, contract_values);
}

TEST(CpuNumerics, ErrorsOfDecaysNearOneAreThoseOfAPlainLoop) {
  expect_errors_of_a_plain_loop(Case("slow").size(1, 20, 4608, 8), 2, slow_values);
}

/// The contract's bound at the contract's sizes.
TEST(CpuNumerics, OutputsOfOrderOneDifferByLessThanOneHundredThousandth) {
  for (const Case& c :
       {Case("small").size(2, 4, 8, 16), Case("long").size(1, 32, 256, 16), Case("wide").size(8, 128, 64, 16)}) {
    ScanProblem fast(c, ScalarType::kFloat32, Layout::kContiguous, contract_values(c, 1), {});
    run_forward(fast);
    const Numbers actual = fast.result().out, expected = reference_scan(c, fast.values).out;
    double largest = 0;
    for (size_t i = 0; i < actual.size(); ++i) largest = std::max(largest, std::abs(actual[i] - expected[i]));
    EXPECT_LT(largest, 1e-5) << c.name;
  }
}

void expect_agreement(const Case& c, ScalarType type, Layout layout) {
  SCOPED_TRACE(name_of(c, type, layout));
  ScanProblem fast(c, type, layout), plain(c, type, layout);
  run(fast);
  run(plain, kPlainLoop);
  // Two roundings of nearly the same number may differ by a whole unit.
  const auto twice = [](Tolerance x) { return Tolerance{2 * x.relative, x.share}; };
  EXPECT_TRUE(close(fast.result().out, plain.result().out, twice(result_tolerance(type))));
  const ScanValues actual = fast.gradients(), expected = plain.gradients();
  for (const auto& [name, input] : kInputs) {
    EXPECT_TRUE(close(actual.*input, expected.*input, twice(gradient_tolerance(type)))) << name;
  }
  EXPECT_TRUE(fast.is_clean());
}

TEST(CpuNumerics, EveryNumberOfStates) {
  for (int64_t dstate = 1; dstate <= 70; ++dstate) {
    const Case c = Case("dstate_" + std::to_string(dstate)).size(1, 19, 37, dstate);
    expect_agreement(c, ScalarType::kFloat32, Layout::kContiguous);
    expect_agreement(c, kAllTypes[dstate % 4], dstate % 8 < 4 ? Layout::kChannelLast : Layout::kPadded);
  }
}

TEST(CpuNumerics, EveryNumberOfChannelsAndSteps) {
  for (int64_t size = 1; size <= 70; ++size) {
    const unsigned options = size % 2 ? unsigned{kAll} : kAll | kReverse;
    const Case wide = Case("dim_" + std::to_string(size)).size(1, size, 33, 5).with(options);
    const Case tall = Case("length_" + std::to_string(size)).size(1, 17, size, 5).with(options);
    for (const Case& c : {wide, tall}) {
      expect_agreement(c, kAllTypes[size % 4], Layout::kContiguous);
      expect_agreement(c, kAllTypes[(size + 1) % 4], Layout::kChannelLast);
    }
  }
}

bool is_finite(const Numbers& x, int64_t at) {
  return std::isfinite(x[static_cast<size_t>(at)].real());
}

/// One input of one channel at one time: `step` of the scan's order of time, which is `time` either way.
TEST(CpuNumerics, WhatIsNotFiniteReachesItsChannelAndLaterStepsOnly) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const ScalarType type : kAllTypes) {
    for (const double value : {std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
      for (const bool is_reverse : {false, true}) {
        const Case c = Case("poisoned").size(1, 37, 150, 5).with(is_reverse ? kAll | kReverse : unsigned{kAll});
        for (const int64_t time : {0, 40, 127, 149}) {
          ScanValues values = random_values(c, 7);
          values.u[static_cast<size_t>(18 * c.length + time)] = value;
          ScanProblem problem(c, type, Layout::kContiguous, values, random_cotangents(c, 8));
          run(problem);
          const Numbers out = problem.result().out;
          const ScanValues gradients = problem.gradients();
          for (int64_t d = 0; d < c.dim; ++d) {
            for (int64_t t = 0; t < c.length; ++t) {
              const bool is_later = is_reverse ? t <= time : t >= time;
              ASSERT_EQ(is_finite(out, d * c.length + t), d != 18 || !is_later) << d << " " << t;
              // Of what u itself changes, only dz and the gradients of sums can be reached.
              ASSERT_TRUE(is_finite(gradients.u, d * c.length + t)) << d << " " << t;
              ASSERT_EQ(is_finite(gradients.z, d * c.length + t), d != 18 || !is_later) << d << " " << t;
            }
            ASSERT_EQ(is_finite(gradients.D, d), d != 18) << d;
          }
          for (int64_t t = 0; t < c.length; ++t) {
            const bool is_later = is_reverse ? t <= time : t >= time;
            ASSERT_EQ(is_finite(gradients.B, t), t != time) << t;
            ASSERT_EQ(is_finite(gradients.C, t), !is_later) << t;
          }
        }
      }
    }
  }
}

TEST(CpuNumerics, NothingThatIsNotFiniteCrossesTheBoundOfASequence) {
  const Case c = Case("packed").packed(120, {0, 50, 50, 83, 120}).size(1, 21, 120, 4);
  ScanValues values = random_values(c, 3);
  for (int64_t d = 0; d < c.dim; ++d) {
    for (int64_t t = 50; t < 83; ++t) values.u[static_cast<size_t>(d * c.length + t)] = std::nan("");
  }
  ScanProblem problem(c, ScalarType::kFloat32, Layout::kContiguous, values, random_cotangents(c, 4));
  run(problem);
  const Numbers out = problem.result().out;
  const ScanValues gradients = problem.gradients();
  for (int64_t d = 0; d < c.dim; ++d) {
    for (int64_t t = 0; t < c.length; ++t) {
      const bool is_inside = t >= 50 && t < 83;
      ASSERT_EQ(is_finite(out, d * c.length + t), !is_inside) << d << " " << t;
      ASSERT_TRUE(is_inside || is_finite(gradients.delta, d * c.length + t)) << d << " " << t;
    }
  }
}

/// Inputs too small for a normal number are not taken for zero, nor is what comes of them.
TEST(CpuNumerics, DenormalsAreNumbers) {
  const Case c = Case("denormal").size(1, 18, 70, 5).with(kD);
  ScanValues values = random_values(c, 5);
  for (Number& x : values.u) x *= 1e-40;
  ScanProblem problem(c, ScalarType::kFloat32, Layout::kContiguous, values, {});
  run_forward(problem);
  const Numbers actual = problem.result().out, expected = reference_scan(c, problem.values).out;
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i].real(), expected[i].real(), 1e-43) << i;
}

/// Steps so long that a decay is 0 or a growth infinite, and so short that nothing moves.
TEST(CpuNumerics, StepsOfAnySizeFollowTheMaths) {
  for (const double A : {-1.0, 1.0}) {
    for (const double step : {0.0, 1e-30, 1e-3, 80.0, 100.0, 1e4, 1e30}) {
      Case c = Case("steps").size(1, 18, 40, 3).with(kInitialState);
      ScanValues values = random_values(c, 9);
      for (Number& x : values.delta) x = step;
      for (Number& x : values.A) x = A;
      ScanProblem fast(c, ScalarType::kFloat32, Layout::kContiguous, values, {});
      ScanProblem plain(c, ScalarType::kFloat32, Layout::kContiguous, values, {});
      run_forward(fast);
      run_forward(plain, /*with_checkpoints=*/true, kPlainLoop);
      const Numbers actual = fast.result().out, expected = plain.result().out;
      double scale = 0;  // of what the channel has been through
      for (int64_t i = 0; i < c.dim * c.length; ++i) {
        const double x = actual[static_cast<size_t>(i)].real(), y = expected[static_cast<size_t>(i)].real();
        if (i % c.length == 0) scale = 0;
        if (std::isfinite(y)) {
          scale = std::max(scale, std::abs(y));
          ASSERT_NEAR(x, y, 1e-5 * scale) << A << " " << step << " " << i;
        } else {
          ASSERT_TRUE(std::isnan(y) ? std::isnan(x) : x == y) << A << " " << step << " " << i;
        }
      }
    }
  }
}

}  // namespace

}  // namespace mamba::tests
