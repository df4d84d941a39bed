// exp, softplus and the gate of the CPU kernels against the standard library in higher precision. Built once for each
// ISA level.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "cpu/math.h"

namespace {

namespace level = mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL;
using level::broadcast, level::decay, level::kLanes, level::Vec;

template <class Real>
using Higher = std::conditional_t<std::is_same_v<Real, float>, double, long double>;
template <class Real>
using Bits = std::conditional_t<std::is_same_v<Real, float>, uint32_t, uint64_t>;
template <class Real>
constexpr Real kEpsilon = std::numeric_limits<Real>::epsilon();
template <class Real>
constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
template <class Real>
constexpr Real kNaN = std::numeric_limits<Real>::quiet_NaN();

/// f of one number, which all lanes must agree on.
template <class Real, class F>
Real one(F f, Real x) {
  const Vec<Real> y = f(broadcast<Vec<Real>>(x));
  for (int i = 1; i < kLanes<Real>; ++i) {
    EXPECT_EQ(level::bits<Bits<Real>>(Real(y[0])), level::bits<Bits<Real>>(Real(y[i]))) << "lane " << i << " of " << x;
  }
  return y[0];
}

/// Holds f to so many epsilons of relative error over [low, high]. What is all but denormal may become 0.
template <class Real, class F, class G>
void expect_accurate(F f, G exact, Real low, Real high, double epsilons) {
  constexpr int kSteps = 200003;
  const auto flushed = std::ldexp(Higher<Real>(1), 4 - level::Constants<Real>::kBias);
  double worst = 0;
  Real at = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const Real x = low + (high - low) * Real(i) / Real(kSteps), got = one(f, x);
    const Higher<Real> want = exact(Higher<Real>(x));
    if (std::abs(want) < flushed) {
      ASSERT_LE(std::abs(got), flushed) << x;
      continue;
    }
    const double error = static_cast<double>(std::abs((Higher<Real>(got) - want) / want)) / kEpsilon<Real>;
    ASSERT_FALSE(std::isnan(error)) << x;
    if (error > worst) worst = error, at = x;
  }
  EXPECT_LE(worst, epsilons) << "at " << at;
  if (std::getenv("MAMBA_OPS_TEST_VERBOSE")) std::printf("    [%g, %g]: %.2f epsilons\n", low, high, worst);
}

const auto vector_exp = [](auto x) { return level::exp(x); };
const auto vector_softplus = [](auto x) { return level::Softplus<decltype(x)>(x).value; };
const auto vector_slope = [](auto x) { return level::Softplus<decltype(x)>(x).slope; };
const auto vector_sigmoid = [](auto x) { return level::sigmoid(x); };
const auto exact_exp = [](auto x) { return std::exp(x); };
const auto exact_softplus = [](auto x) { return x > 20 ? x : std::log1p(std::exp(x)); };
const auto exact_sigmoid = [](auto x) { return 1 / (1 + std::exp(-x)); };

template <class Real>
class CpuMath : public testing::Test {};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(CpuMath, Reals);

TYPED_TEST(CpuMath, ExpIsAccurateOverItsRange) {
  using Real = TypeParam;
  const Real most = std::log(std::numeric_limits<Real>::max()) * (1 - kEpsilon<Real>);
  expect_accurate<Real>(vector_exp, exact_exp, -1, 1, 1);
  expect_accurate<Real>(vector_exp, exact_exp, Real(-1) / 1024, Real(1) / 1024, 0.6);
  expect_accurate<Real>(vector_exp, exact_exp, -most - 20, most, 1);
  EXPECT_EQ(one<Real>(vector_exp, 0), Real(1));
}

TYPED_TEST(CpuMath, ExpOfExtremesIsWhatTheMathsSays) {
  using Real = TypeParam;
  for (Real x : {Real(1e3), Real(1e4), Real(1e9), Real(1e30), std::numeric_limits<Real>::max(), kInfinity<Real>}) {
    EXPECT_EQ(one(vector_exp, -x), Real(0)) << -x;
    EXPECT_EQ(one(vector_exp, x), kInfinity<Real>) << x;
  }
  EXPECT_TRUE(std::isnan(one(vector_exp, kNaN<Real>)));
}

TYPED_TEST(CpuMath, EveryNaNStaysOne) {
  using Real = TypeParam;
  const auto squared_decay = [](auto x) { return decay<true>(x, x); };
  for (unsigned payload : {0u, 1u, 0x155u, 0x1ffu}) {
    for (int inverted : {0, 1}) {
      const Bits<Real> pattern =
          level::bits<Bits<Real>>(kNaN<Real>) | payload | (inverted ? ~(~Bits<Real>{0} >> 1) : 0);
      const Real x = level::bits<Real>(pattern);
      EXPECT_TRUE(std::isnan(one(vector_exp, x))) << std::hex << pattern;
      EXPECT_TRUE(std::isnan(one(vector_softplus, x))) << std::hex << pattern;
      EXPECT_TRUE(std::isnan(one(vector_sigmoid, x))) << std::hex << pattern;
      EXPECT_TRUE(std::isnan(one(squared_decay, x))) << std::hex << pattern;
    }
  }
}

TYPED_TEST(CpuMath, DecayIsTheSameGuardedAndUnguardedWhereBothAreSafe) {
  using Real = TypeParam;
  using Safe = level::SafeExponents<Real>;
  const auto A = level::scaled_by_log2e(broadcast<Vec<Real>>(Real(-0.7)));
  const Real longest = Safe::kLeast / A[0], shortest = Safe::kMost / A[0];
  for (int i = 0; i <= 20000; ++i) {
    const Real step = shortest + (longest - shortest) * Real(i) / 20000;
    const Real guarded = one([&](auto x) { return decay<true>(x, A); }, step);
    ASSERT_EQ(guarded, one([&](auto x) { return decay<false>(x, A); }, step)) << step;
    const auto exact = std::exp(Higher<Real>(step) * Higher<Real>(Real(-0.7)));
    ASSERT_LE(std::abs(guarded / exact - 1), (2 + std::abs(step)) * kEpsilon<Real>) << step;
  }
}

TYPED_TEST(CpuMath, SoftplusIsAccurateHoweverSmall) {
  using Real = TypeParam;
  expect_accurate<Real>(vector_softplus, exact_softplus, -100, 100, 3);
  expect_accurate<Real>(vector_softplus, exact_softplus, -2, 2, 3);
  expect_accurate<Real>(vector_softplus, exact_softplus, Real(19.9), Real(20.1), 1);
  EXPECT_EQ(one(vector_softplus, -kInfinity<Real>), Real(0));
  for (Real x : {Real(20.5), Real(25), Real(1e30), kInfinity<Real>}) EXPECT_EQ(one(vector_softplus, x), x);
}

TYPED_TEST(CpuMath, SigmoidAndTheSlopeOfSoftplusAreAccurate) {
  using Real = TypeParam;
  expect_accurate<Real>(vector_sigmoid, exact_sigmoid, -80, 80, 3);
  expect_accurate<Real>(vector_slope, exact_sigmoid, -80, 20, 3);
  EXPECT_EQ(one<Real>(vector_slope, 21), Real(1));
  EXPECT_EQ(one(vector_sigmoid, kInfinity<Real>), Real(1));
  EXPECT_EQ(one(vector_sigmoid, -kInfinity<Real>), Real(0));
}

}  // namespace
