// The formulas of step.h: values in higher precision, slopes against differences.
#include "mamba/kernels/step.h"

#include <gtest/gtest.h>

#include <complex>
#include <limits>

namespace mamba::kernels {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class Real>
class Formula : public testing::Test {
 protected:
  /// Within a few units in the last place.
  static void expect_close(Real actual, long double expected, const char* what, Real x) {
    const long double allowed =
        4 * std::numeric_limits<Real>::epsilon() * std::abs(expected) + std::numeric_limits<Real>::min();
    EXPECT_LE(std::abs(static_cast<long double>(actual) - expected), allowed)
        << what << " at " << x << ": " << actual << ", not " << expected;
  }
  template <class F>
  static void at_many_points(F&& f) {
    for (int i = -3000; i <= 3000; ++i) f(static_cast<Real>(i) / 50);
  }
};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(Formula, Reals);

TYPED_TEST(Formula, SoftplusIsTorchs) {
  this->at_many_points([](TypeParam x) {
    const long double expected =
        x > 20 ? static_cast<long double>(x) : std::log1p(std::exp(static_cast<long double>(x)));
    TestFixture::expect_close(softplus(x), expected, "softplus", x);
  });
  EXPECT_EQ(softplus(TypeParam(20.5)), TypeParam(20.5));
  EXPECT_EQ(softplus(TypeParam(-1000)), 0);
  EXPECT_EQ(softplus(TypeParam(1000)), 1000);
}

TYPED_TEST(Formula, SigmoidAndSilu) {
  this->at_many_points([](TypeParam x) {
    const long double exact = x, sigmoid_x = 1 / (1 + std::exp(-exact));
    TestFixture::expect_close(sigmoid(x), sigmoid_x, "sigmoid", x);
    TestFixture::expect_close(silu(x), exact * sigmoid_x, "silu", x);
  });
  for (const TypeParam large : {TypeParam(1000), std::numeric_limits<TypeParam>::max()}) {
    EXPECT_EQ(sigmoid(large), 1);
    EXPECT_EQ(sigmoid(-large), 0);
    EXPECT_EQ(silu(large), large);
    EXPECT_EQ(silu(-large), 0);
    EXPECT_EQ(silu_slope(large), 1);
    EXPECT_EQ(silu_slope(-large), 0);
  }
}

TEST(Slope, IsTheDifferenceOfItsFunction) {
  constexpr double kStep = 1e-6;
  for (double x = -15; x <= 19.9; x += 0.13) {
    EXPECT_NEAR(softplus_slope(x), (softplus(x + kStep) - softplus(x - kStep)) / (2 * kStep), 1e-8) << x;
    EXPECT_NEAR(silu_slope(x), (silu(x + kStep) - silu(x - kStep)) / (2 * kStep), 1e-8) << x;
  }
  EXPECT_EQ(softplus_slope(20.5), 1);
}

TEST(Decay, IsTheExponential) {
  EXPECT_DOUBLE_EQ(decay(0.3, -1.7), std::exp(0.3 * -1.7));
  const std::complex<double> A(-0.4, 2.1), expected = std::exp(0.3 * A);
  const Complex<double> actual = decay(0.3, Complex<double>(A.real(), A.imag()));
  EXPECT_DOUBLE_EQ(actual.re, expected.real());
  EXPECT_DOUBLE_EQ(actual.im, expected.imag());
}

TEST(Decay, LargeNegativeIsZeroAndNeverNan) {
  EXPECT_EQ(decay(1e30f, -1e30f), 0.0f);
  EXPECT_EQ(decay(1e300, -1e300), 0.0);
  EXPECT_EQ(decay(0.5, -kInfinity), 0.0);
  const Complex<double> a = decay(1e5, Complex<double>(-1e5, 3));
  EXPECT_EQ(a.re, 0);
  EXPECT_EQ(a.im, 0);
}

TEST(Readout, IsTwiceTheRealPartOfAComplexProduct) {
  EXPECT_DOUBLE_EQ(readout(1.5, -2.0), -3.0);
  const std::complex<double> C(1.5, -0.5), h(-2, 0.25);
  EXPECT_DOUBLE_EQ(readout(Complex<double>(1.5, -0.5), Complex<double>(-2, 0.25)), 2 * (C * h).real());
}

/// One step and its readout, as a function of everything: what the adjoints are derivatives of.
template <class State>
struct Step {
  using Real = typename Number<State>::Real;
  Real step, u;
  State A, B, C, previous;

  State next() const { return decay(step, A) * previous + step * u * B; }
  /// A loss with gradient `g` along the next state, and with gradient `dy` along the readout.
  Real state_loss(State g) const { return along(g, next()); }
  Real output_loss(Real dy) const { return dy * readout(C, next()); }
};

template <class State, class Loss>
double difference(Step<State> at, State Step<State>::*member, State direction, Loss&& loss) {
  const double step = 1e-6;
  Step<State> up = at, down = at;
  up.*member = up.*member + step * direction;
  down.*member = down.*member + -step * direction;
  return (loss(up) - loss(down)) / (2 * step);
}
template <class State, class Loss>
double difference(Step<State> at, double Step<State>::*member, Loss&& loss) {
  const double step = 1e-6;
  Step<State> up = at, down = at;
  up.*member += step;
  down.*member -= step;
  return (loss(up) - loss(down)) / (2 * step);
}

template <class State>
std::vector<State> directions();
template <>
std::vector<double> directions<double>() {
  return {1.0};
}
template <>
std::vector<Complex<double>> directions<Complex<double>>() {
  return {{1, 0}, {0, 1}};
}

template <class State>
void check_adjoints(const Step<State>& at, State g, double dy) {
  constexpr double kTolerance = 1e-8;
  const auto state_loss = [&](const Step<State>& x) { return x.state_loss(g); };
  const auto output_loss = [&](const Step<State>& x) { return x.output_loss(dy); };
  const State a = decay(at.step, at.A);
  const StepAdjoint<State> adjoint(g, a, a * at.previous, at.step, at.u, at.A, at.B);
  // The state loss sees the step directly: step is a real number on its own.
  EXPECT_NEAR(adjoint.du, (difference<State>(at, &Step<State>::u, state_loss)), kTolerance);
  EXPECT_NEAR(adjoint.dstep, (difference<State>(at, &Step<State>::step, state_loss)), kTolerance);
  for (const State& direction : directions<State>()) {
    auto along_member = [&](State Step<State>::*member) {
      return difference<State>(at, member, direction, state_loss);
    };
    EXPECT_NEAR(along(adjoint.dA, direction), along_member(&Step<State>::A), kTolerance);
    EXPECT_NEAR(along(adjoint.dB, direction), along_member(&Step<State>::B), kTolerance);
    EXPECT_NEAR(along(adjoint.dprevious, direction), along_member(&Step<State>::previous), kTolerance);
    const double dC = difference<State>(at, &Step<State>::C, direction, output_loss);
    EXPECT_NEAR(along(readout_adjoint(dy, at.next()), direction), dC, kTolerance);
  }
  const StepAdjoint<State> of_output(readout_adjoint(dy, at.C), a, a * at.previous, at.step, at.u, at.A, at.B);
  EXPECT_NEAR(of_output.du, (difference<State>(at, &Step<State>::u, output_loss)), kTolerance);
}

TEST(StepAdjointTest, RealStatesMatchDifferences) {
  check_adjoints<double>({0.4, 1.3, -0.8, 0.6, -1.1, 0.9}, 0.7, -1.4);
}

TEST(StepAdjointTest, ComplexStatesMatchDifferences) {
  check_adjoints<Complex<double>>({0.4, 1.3, {-0.8, 2.2}, {0.6, -0.3}, {-1.1, 0.2}, {0.9, -0.5}}, {0.7, 1.9}, -1.4);
}

}  // namespace

}  // namespace mamba::kernels
