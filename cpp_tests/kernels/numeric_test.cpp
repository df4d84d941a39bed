// The number types: every 16-bit float, every boundary of rounding, complex arithmetic against the standard library.
#include "mamba/kernels/numeric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <random>

namespace mamba::kernels {

namespace {

/// The value of a 16-bit float from its definition.
template <class T>
double value_of(uint16_t bits);
double value_of(uint16_t bits, int mantissa_bits, int bias) {
  const int exponent = (bits & 0x7fff) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int all_ones = (1 << (15 - mantissa_bits)) - 1;
  if (exponent == all_ones) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}
template <>
double value_of<Float16>(uint16_t bits) {
  return value_of(bits, 10, 15);
}
template <>
double value_of<BFloat16>(uint16_t bits) {
  return value_of(bits, 7, 127);
}

template <class T>
uint16_t rounded(float x) {
  T narrowed;
  narrow(x, narrowed);
  return narrowed.bits;
}

template <class T>
class SixteenBit : public testing::Test {
 protected:
  static constexpr uint16_t kInfinity = std::is_same_v<T, Float16> ? 0x7c00 : 0x7f80;
};
using SixteenBitTypes = testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(SixteenBit, SixteenBitTypes);

TYPED_TEST(SixteenBit, EveryValueWidensExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    TypeParam x;
    x.bits = static_cast<uint16_t>(bits);
    const double expected = value_of<TypeParam>(x.bits);
    const double actual = widen(x);
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(actual) : actual == expected) << std::hex << bits;
    ASSERT_EQ(std::signbit(widen(x)), (bits & 0x8000) != 0) << std::hex << bits;
  }
}

TYPED_TEST(SixteenBit, EveryValueComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    TypeParam x;
    x.bits = static_cast<uint16_t>(bits);
    const float wide = widen(x);
    if (std::isnan(wide)) {
      TypeParam back;
      narrow(wide, back);
      ASSERT_TRUE(std::isnan(widen(back))) << std::hex << bits;
    } else {
      ASSERT_EQ(rounded<TypeParam>(wide), x.bits) << std::hex << bits;
    }
  }
}

/// Between two neighbours the midpoint decides: below it down, above it up, on it to the even one. Beyond the largest
/// finite value the neighbour is what would follow it, and stands for infinity.
TYPED_TEST(SixteenBit, EveryBoundaryRoundsToNearestEven) {
  for (uint16_t low = 0; low < this->kInfinity; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double below = value_of<TypeParam>(low);
    const double spacing = high < this->kInfinity ? value_of<TypeParam>(high) - below
                                                  : below - value_of<TypeParam>(static_cast<uint16_t>(low - 1));
    const auto midpoint = static_cast<float>(below + spacing / 2);
    ASSERT_EQ(static_cast<double>(midpoint), below + spacing / 2) << "the midpoint is a float";
    const float infinity = std::numeric_limits<float>::infinity();
    for (const bool is_negative : {false, true}) {
      const float sign = is_negative ? -1.0f : 1.0f;
      const auto sign_bit = static_cast<uint16_t>(is_negative ? 0x8000 : 0);
      ASSERT_EQ(rounded<TypeParam>(sign * std::nextafter(midpoint, 0.0f)), low | sign_bit);
      ASSERT_EQ(rounded<TypeParam>(sign * midpoint), (low % 2 == 0 ? low : high) | sign_bit);
      ASSERT_EQ(rounded<TypeParam>(sign * std::nextafter(midpoint, infinity)), high | sign_bit);
    }
  }
  EXPECT_EQ(rounded<TypeParam>(std::numeric_limits<float>::infinity()), this->kInfinity);
  EXPECT_EQ(rounded<TypeParam>(-std::numeric_limits<float>::infinity()), this->kInfinity | 0x8000);
}

TYPED_TEST(SixteenBit, RandomBitsRoundToANeighbourNoFurtherThanAnother) {
  std::mt19937 random(7);
  const double largest = value_of<TypeParam>(static_cast<uint16_t>(this->kInfinity - 1));
  for (int i = 0; i < 200000; ++i) {
    const float x = bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x) || std::abs(x) > largest) continue;
    const uint16_t bits = rounded<TypeParam>(x);
    const double error = std::abs(value_of<TypeParam>(bits) - x);
    for (const int step : {-1, 1}) {
      const auto other = static_cast<uint16_t>(bits + step);
      if ((other & 0x7fff) >= this->kInfinity) continue;
      ASSERT_LE(error, std::abs(value_of<TypeParam>(other) - x)) << x;
    }
  }
}

TEST(Narrow, BetweenFloatAndDouble) {
  double wide = 0;
  narrow(0.1f, wide);
  EXPECT_EQ(wide, static_cast<double>(0.1f));
  float single = 0;
  narrow(0.1, single);
  EXPECT_EQ(single, 0.1f);
  BFloat16 low;
  narrow(1.0, low);
  EXPECT_EQ(low.bits, 0x3f80);
}

TEST(ComplexNumber, AgreesWithTheStandardLibrary) {
  using Standard = std::complex<double>;
  const Standard x(1.25, -2.5), y(-0.75, 3);
  const Complex<double> a(x.real(), x.imag()), b(y.real(), y.imag());
  auto expect = [](Complex<double> actual, Standard expected) {
    EXPECT_DOUBLE_EQ(actual.re, expected.real());
    EXPECT_DOUBLE_EQ(actual.im, expected.imag());
  };
  expect(a + b, x + y);
  expect(a * b, x * y);
  expect(1.5 * a, 1.5 * x);
  expect(conj(a), std::conj(x));
  Complex<double> sum = a;
  sum += b;
  expect(sum, x + y);
  EXPECT_DOUBLE_EQ(along(a, b), (x * std::conj(y)).real());
  EXPECT_EQ(along(3.0, -2.0), -6.0);
  EXPECT_EQ(conj(3.0), 3.0);
}

}  // namespace

}  // namespace mamba::kernels
