// What the vectorised CPU scan promises beyond the case table: random problems against the generic kernels, channels
// that do not see their neighbours, extreme values, chunks of time. At the ISA level that MAMBA_OPS_CPU chooses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "generic/cpu.h"
#include "kernels/scan_problem.h"
#include "mamba/kernels/config_cpu.h"
#include "mamba/kernels/scan.h"

namespace mamba::tests {

namespace {

namespace cpu = kernels::cpu;
namespace generic = kernels::generic::cpu;
using kernels::Range;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

void run_generic(ScanProblem& problem) {
  const kernels::ScanParams forward = problem.forward_params(on_host);
  generic::forward(forward, {0, generic::forward_work(forward)});
  const kernels::ScanGradParams backward = problem.backward_params(on_host);
  generic::backward(backward, {0, generic::backward_work(backward)});
}

int64_t divisor(Random& random, int64_t x) {
  int64_t y = 1 + random.below(x);
  while (x % y != 0) --y;
  return y;
}

Case random_case(Random& random) {
  const auto coefficient = [&](int64_t dim) {
    const int64_t form = random.below(4);
    return form == 0 ? constant() : form == 1 ? grouped(divisor(random, dim)) : shared();
  };
  const int64_t dims[] = {1 + random.below(9), 15 + random.below(4), 30 + random.below(40), 2 * (1 + random.below(60))};
  const int64_t dim = dims[random.below(4)];
  Case c("random");
  c.size(1 + random.below(3), dim, 1 + random.below(300), 1 + random.below(20));
  c.coefficients(coefficient(dim), coefficient(dim)).with(static_cast<unsigned>(random.below(64)));
  if (random.below(4) == 0) {
    const int64_t third = c.length / 3;
    c.packed(c.length, {random.below(third + 1), third, third, 2 * third, c.length - random.below(third + 1)});
  }
  return c;
}

TEST(CpuScan, RandomProblemsAgreeWithTheGenericKernels) {
  Random random(11);
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const Case c = random_case(random);
    const ScalarType type = kAllTypes[random.below(4)];
    const auto layout = static_cast<Layout>(random.below(3));
    SCOPED_TRACE("problem " + std::to_string(seed));
    ScanProblem fast(c, type, layout, seed), oracle(c, type, layout, seed);
    run_forward(fast);
    run_backward(fast);
    run_generic(oracle);
    // Two roundings of nearly the same number may differ by a whole unit.
    const auto tolerance = [&](ScalarType of, bool is_gradient) {
      Tolerance t = is_gradient ? gradient_tolerance(of) : result_tolerance(of);
      t.relative *= 2;
      return t;
    };
    EXPECT_TRUE(close(fast.result().out, oracle.result().out, tolerance(type, false)));
    EXPECT_TRUE(close(fast.result().last_state, oracle.result().last_state, tolerance(fast.wide_type, false)));
    const ScanValues actual = fast.gradients(), expected = oracle.gradients();
    for (const auto& [name, input] : kInputs) {
      const bool is_activation = input == &ScanValues::u || input == &ScanValues::delta || input == &ScanValues::z;
      EXPECT_TRUE(close(actual.*input, expected.*input, tolerance(is_activation ? type : fast.wide_type, true)))
          << name;
    }
    EXPECT_TRUE(fast.is_clean());
  }
}

/// Channel d of (batch 1, dim, rest).
Numbers channel(const Numbers& x, int64_t d, int64_t dim) {
  const auto rest = static_cast<std::ptrdiff_t>(x.size()) / dim;
  return {x.begin() + d * rest, x.begin() + (d + 1) * rest};
}

/// Whatever its neighbours in a vector are: the exponential that wild ones need must give calm ones the same bits.
TEST(CpuScan, NoChannelSeesItsNeighbours) {
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kFloat64}) {
    const Case c = Case("neighbours").size(1, 37, 140, 5);
    const ScanValues calm = random_values(c, 3);
    const ScanResult weights = random_cotangents(c, 4);
    ScanValues wild = calm;
    for (int64_t d = 0; d < c.dim; d += 2) {
      for (int64_t n = 0; n < c.dstate; ++n) wild.A[static_cast<size_t>(d * c.dstate + n)] = n == 0 ? kNaN : -1e30;
      for (int64_t t = 0; t < c.length; ++t) wild.u[static_cast<size_t>(d * c.length + t)] = 1e30;
    }
    ScanProblem expected(c, type, Layout::kContiguous, calm, weights),
        actual(c, type, Layout::kContiguous, wild, weights);
    for (ScanProblem* problem : {&expected, &actual}) {
      run_forward(*problem);
      run_backward(*problem);
    }
    const ScanValues gradients = actual.gradients(), usual = expected.gradients();
    for (int64_t d = 1; d < c.dim; d += 2) {
      EXPECT_EQ(channel(actual.result().out, d, c.dim), channel(expected.result().out, d, c.dim)) << d;
      for (Numbers ScanValues::*input : {&ScanValues::u, &ScanValues::delta, &ScanValues::z, &ScanValues::A,
                                         &ScanValues::D, &ScanValues::delta_bias, &ScanValues::initial_state}) {
        EXPECT_EQ(channel(gradients.*input, d, c.dim), channel(usual.*input, d, c.dim)) << d;
      }
    }
  }
}

ScanValues constant_values(const Case& c, double u, double delta, double A) {
  ScanValues v = random_values(c, 1);
  for (Number& x : v.u) x = u;
  for (Number& x : v.delta) x = delta;
  for (Number& x : v.A) x = A;
  for (Number& x : v.B) x = 1;
  for (Number& x : v.C) x = 1;
  return v;
}

TEST(CpuScan, DecaysTooStrongForAnExponentialForgetEverything) {
  const Case c = Case("strong").size(1, 18, 70, 3).with(kInitialState);
  for (const double A : {-1e2, -1e4, -1e30}) {
    ScanProblem problem(c, ScalarType::kFloat32, Layout::kContiguous, constant_values(c, 1, 1, A), {});
    run_forward(problem);
    for (const Number& y : problem.result().out) EXPECT_NEAR(y.real(), 3, 1e-6);
  }
}

TEST(CpuScan, GrowthBeyondAllBoundsLeavesAZeroStateZero) {
  for (const unsigned direction : {0u, static_cast<unsigned>(kReverse)}) {
    const Case c = Case("growth").size(1, 18, 140, 3).with(direction);
    ScanProblem problem(c, ScalarType::kFloat32, Layout::kContiguous, constant_values(c, 0, 5, 1), {});
    run_forward(problem);
    for (const Number& y : problem.result().out) EXPECT_EQ(y.real(), 0);
    for (const Number& h : problem.result().last_state) EXPECT_EQ(h.real(), 0);
  }
}

// A forward that is cut along time.

kernels::ScanParams cut(ScanProblem& problem, std::vector<double>& carries) {
  kernels::ScanParams p = problem.forward_params(on_host);
  carries.assign(static_cast<size_t>(cpu::carries_size(p)) / sizeof(double) + 1, kNaN);
  p.carries = carries.data();
  return p;
}

void run_cut(ScanProblem& problem) {
  std::vector<double> carries;
  const kernels::ScanParams p = cut(problem, carries);
  ASSERT_GT(cpu::carry_work(p), 0);
  cpu::carry(p, {0, cpu::carry_work(p)});
  cpu::forward(p, {0, cpu::forward_work(p)});
}

std::vector<Case> long_cases() {
  std::vector<Case> cases;
  for (const int64_t dim : {1, 5, 16}) {
    cases.push_back(Case("dim_" + std::to_string(dim)).size(1, dim, 2085, 5));
    cases.push_back(Case("reverse_" + std::to_string(dim)).size(1, dim, 5000, 3).with(kAll | kReverse));
  }
  cases.push_back(Case("groups").size(1, 6, 1024, 17).coefficients(grouped(3), constant()));
  cases.push_back(Case("packed").size(1, 7, 0, 3).packed(5000, {30, 1290}));
  cases.push_back(Case("packed_empty").size(1, 7, 0, 3).packed(1100, {30, 30}));
  return cases;
}

TEST(CpuScan, ChunksOfTimeEqualTheReference) {
  for (const Case& c : long_cases()) {
    for (const ScalarType type : kAllTypes) {
      SCOPED_TRACE(c.name + " " + name_of(type));
      ScanProblem problem(c, type, Layout::kContiguous);
      run_cut(problem);
      const ScanResult expected = reference_scan(c, problem.values);
      EXPECT_TRUE(close(problem.result().out, expected.out, result_tolerance(type)));
      EXPECT_TRUE(close(problem.result().last_state, expected.last_state, result_tolerance(problem.wide_type)));
      EXPECT_TRUE(problem.is_clean());
    }
  }
}

TEST(CpuScan, ChunksInAnyOrderGiveTheSameBitsWithAndWithoutCheckpoints) {
  const Case c = Case("long").size(1, 9, 4200, 6);
  ScanProblem expected(c, ScalarType::kFloat32, Layout::kContiguous),
      actual(c, ScalarType::kFloat32, Layout::kContiguous);
  run_cut(expected);
  std::vector<double> carries;
  kernels::ScanParams p = cut(actual, carries);
  p.checkpoints = nullptr;
  for (int64_t i = cpu::carry_work(p) - 1; i >= 0; --i) cpu::carry(p, {i, i + 1});
  for (int64_t i = cpu::forward_work(p) - 1; i >= 0; --i) cpu::forward(p, {i, i + 1});
  EXPECT_EQ(actual.out.array.bytes, expected.out.array.bytes);
  EXPECT_EQ(actual.last_state.bytes, expected.last_state.bytes);
}

TEST(CpuScan, NonFiniteValuesCrossChunksAsTheySweepTheScan) {
  const Case c = Case("poisoned").size(1, 5, 2100, 3);
  for (const double value : {kNaN, kInfinity, -kInfinity}) {
    for (const int64_t step : {0, 500, 1000, 2099}) {
      ScanValues values = random_values(c, 7);
      values.u[static_cast<size_t>(2 * c.length + step)] = value;
      ScanProblem problem(c, ScalarType::kFloat32, Layout::kContiguous, values, {});
      run_cut(problem);
      const Numbers out = problem.result().out;
      for (int64_t d = 0; d < c.dim; ++d) {
        for (int64_t t = 0; t < c.length; ++t) {
          const bool is_reached = d == 2 && t >= step;
          ASSERT_EQ(std::isfinite(out[static_cast<size_t>(d * c.length + t)].real()), !is_reached) << d << " " << t;
        }
      }
    }
  }
}

TEST(CpuScan, GrowthAcrossChunksLeavesAZeroStateZero) {
  const Case c = Case("growth").size(1, 5, 2100, 3).with(kPlain);
  ScanProblem problem(c, ScalarType::kFloat32, Layout::kContiguous, constant_values(c, 0, 5, 1), {});
  run_cut(problem);
  for (const Number& y : problem.result().out) EXPECT_EQ(y.real(), 0);
}

/// A state that grows by e^75 in a chunk, from e^-80 on.
TEST(CpuScan, GrowthAcrossChunksDoesNotOverflowBeforeTheStateDoes) {
  Case c = Case("growth").size(1, 3, 1024, 2).with(kInitialState);
  ScanValues values = constant_values(c, 0, 75.0 / 512, 1);
  for (Number& h : values.initial_state) h = std::exp(-80);
  ScanProblem problem(c, ScalarType::kFloat32, Layout::kContiguous, values, {});
  run_cut(problem);
  const ScanResult expected = reference_scan(c, problem.values);
  EXPECT_TRUE(close(problem.result().last_state, expected.last_state, {1e-3, 0}));
}

TEST(CpuScan, PartialSumsOfACoefficientsGradientAreNoLargerThanU) {
  Random random(5);
  for (int i = 0; i < 3000; ++i) {
    kernels::ScanParams p;
    p.dim = 1 + random.below(3000);
    p.dstate = 1 + random.below(100);
    p.batch = p.sequences = 1 + random.below(20);
    p.B.groups = p.C.groups = random.below(2) == 0 ? 1 : divisor(random, p.dim);
    const int64_t slices = kernels::partial_sums(p, p.B);
    if (slices == 1) continue;  // the gradient itself
    ASSERT_LE(2 * slices * p.B.groups * p.dstate, p.dim) << p.dim << " " << p.dstate;
  }
}

}  // namespace

}  // namespace mamba::tests
