// 16-bit floats in vectors against widen() and narrow() of numeric.h, bit for bit. Built once for each ISA level.
#include "cpu/convert.h"

#include <gtest/gtest.h>

#include <vector>

namespace {

namespace level = mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL;
using mamba::kernels::BFloat16, mamba::kernels::Float16;

constexpr int kCount = level::kLanes<float>;

template <class T>
class CpuConvert : public testing::Test {};
using Types = testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(CpuConvert, Types);

uint32_t bits_of(float x) {
  return level::bits<uint32_t>(x);
}

/// Different numbers in neighbouring lanes, and what each of them is alone.
template <class T>
void expect_narrowed(const std::vector<uint32_t>& patterns) {
  for (size_t i = 0; i + kCount <= patterns.size(); i += kCount) {
    const auto narrowed = level::narrowed<T>(level::load<level::Vec<float>>(&patterns[i]));
    for (int lane = 0; lane < kCount; ++lane) {
      T expected;
      narrow(level::bits<float>(patterns[i + static_cast<size_t>(lane)]), expected);
      ASSERT_EQ(narrowed[lane], expected.bits) << std::hex << patterns[i + static_cast<size_t>(lane)];
    }
  }
}

TYPED_TEST(CpuConvert, EveryNumberWidens) {
  for (uint32_t first = 0; first < 0x10000; first += kCount) {
    TypeParam stored[kCount];
    for (int lane = 0; lane < kCount; ++lane)
      stored[lane].bits = static_cast<uint16_t>(first + static_cast<uint32_t>(lane));
    const auto wide = level::load_wide(stored);
    for (int lane = 0; lane < kCount; ++lane) {
      ASSERT_EQ(bits_of(wide[lane]), bits_of(widen(stored[lane]))) << std::hex << stored[lane].bits;
    }
  }
}

TYPED_TEST(CpuConvert, EveryNumberNarrowsToItself) {
  std::vector<uint32_t> patterns;
  for (uint32_t i = 0; i < 0x10000; ++i) {
    TypeParam x;
    x.bits = static_cast<uint16_t>(i);
    patterns.push_back(bits_of(widen(x)));
    if (widen(x) != widen(x)) continue;
    TypeParam back;
    narrow(widen(x), back);
    ASSERT_EQ(back.bits, x.bits);
  }
  expect_narrowed<TypeParam>(patterns);
}

/// Ties, and the floats on either side of them, from denormal to what rounds to infinity.
TYPED_TEST(CpuConvert, NeighboursOfTiesNarrowToTheNearestEven) {
  std::vector<uint32_t> patterns;
  for (uint32_t i = 0; i < 0x10000; ++i) {
    TypeParam x, next;
    x.bits = static_cast<uint16_t>(i);
    next.bits = static_cast<uint16_t>(i + 1);
    const uint32_t tie = bits_of((widen(x) + widen(next)) / 2);
    for (const uint32_t pattern : {tie - 1, tie, tie + 1}) patterns.push_back(pattern);
  }
  expect_narrowed<TypeParam>(patterns);
}

TYPED_TEST(CpuConvert, FloatsOfAllSizesNarrow) {
  std::vector<uint32_t> patterns;
  for (uint64_t pattern = 0; pattern < uint64_t{1} << 32; pattern += 1021) {
    patterns.push_back(static_cast<uint32_t>(pattern));
  }
  expect_narrowed<TypeParam>(patterns);
}

}  // namespace
