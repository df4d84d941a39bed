// The step kernel and the ordered sum on the CPU.
#include "kernels/update_problem.h"

#include <algorithm>

#include "kernels/scan_problem.h"
#include "mamba/kernels/scan.h"

namespace mamba::tests {

namespace {

constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kChannelLast, Layout::kPadded};

using UpdateParam = std::tuple<UpdateCase, ScalarType, ScalarType>;

class UpdateKernel : public testing::TestWithParam<UpdateParam> {
 protected:
  UpdateProblem problem(Layout layout, bool has_wide_coefficients = false) const {
    const auto& [c, type, state_type] = GetParam();
    return UpdateProblem(c, type, state_type, has_wide_coefficients ? wide(type) : type, layout);
  }
};

TEST_P(UpdateKernel, MatchesTheReference) {
  for (const Layout layout : kLayouts) {
    for (const bool has_wide_coefficients : {false, true}) {
      SCOPED_TRACE(std::string(name_of(layout)) + (has_wide_coefficients ? ", wide B and C" : ""));
      UpdateProblem step = problem(layout, has_wide_coefficients);
      const UpdateProblem::Result expected = step.reference();
      run_update(step);
      EXPECT_TRUE(close(step.result().out, expected.out, result_tolerance(step.type)));
      EXPECT_TRUE(
          close(step.result().state, expected.state, result_tolerance(coarser(step.wide_type, step.state_type))));
      EXPECT_TRUE(step.is_clean());
    }
  }
}

TEST_P(UpdateKernel, RangesSplitAnywhereGiveTheSameBits) {
  UpdateProblem whole = problem(Layout::kContiguous), split = problem(Layout::kContiguous);
  run_update(whole);
  const kernels::UpdateParams p = split.params(on_host);
  const int64_t work = kernels::cpu::update_work(p);
  for (const kernels::Range piece :
       {kernels::Range{work / 3, work}, {0, 0}, {1 < work / 3 ? 1 : 0, work / 3}, {0, 1 < work / 3 ? 1 : 0}}) {
    kernels::cpu::update(p, piece);
  }
  EXPECT_EQ(split.out.array.bytes, whole.out.array.bytes);
  EXPECT_EQ(split.state.array.bytes, whole.state.array.bytes);
}

TEST_P(UpdateKernel, SlotsThatNoRowNamesKeepTheirBits) {
  UpdateProblem step = problem(Layout::kContiguous);
  const Numbers before = step.state.numbers();
  run_update(step);
  const Numbers after = step.state.numbers();
  for (int64_t slot = 0; slot < step.c.slots; ++slot) {
    const auto& named = step.c.slot_of_row;
    if (named.empty() || std::find(named.begin(), named.end(), slot) != named.end()) continue;
    const auto size = static_cast<std::ptrdiff_t>(before.size()) / step.c.slots, first = slot * size;
    EXPECT_TRUE(std::equal(before.begin() + first, before.begin() + first + size, after.begin() + first)) << slot;
  }
}

std::string param_name(const testing::TestParamInfo<UpdateParam>& info) {
  const auto& [c, type, state_type] = info.param;
  return c.name + "_" + name_of(type) + "_state_" + name_of(state_type);
}
INSTANTIATE_TEST_SUITE_P(Cases, UpdateKernel,
                         testing::Combine(testing::ValuesIn(update_case_table()), testing::ValuesIn(kAllTypes),
                                          testing::ValuesIn(kAllTypes)),
                         param_name);

template <class Real>
class OrderedSum : public testing::Test {};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(OrderedSum, Reals);

/// Bit for bit the sum from first to last, whatever the range.
TYPED_TEST(OrderedSum, AddsFromFirstToLast) {
  constexpr int64_t kPartials = 37, kCount = 101;
  constexpr bool kIsDouble = std::is_same_v<TypeParam, double>;
  Random random(2);
  std::vector<TypeParam> partial(kPartials * kCount);
  for (TypeParam& x : partial) x = static_cast<TypeParam>(random.normal() * 1e3);
  std::vector<TypeParam> expected(kCount), whole(kCount), split(kCount, TypeParam(-1));
  for (size_t i = 0; i < kCount; ++i) {
    for (size_t k = 0; k < kPartials; ++k) expected[i] += partial[k * kCount + i];
  }
  kernels::cpu::ordered_sum(partial.data(), kPartials, kCount, kIsDouble, whole.data(), {0, kCount});
  EXPECT_EQ(whole, expected);
  for (const kernels::Range piece : {kernels::Range{50, kCount}, {0, 1}, {7, 7}, {1, 50}}) {
    kernels::cpu::ordered_sum(partial.data(), kPartials, kCount, kIsDouble, split.data(), piece);
  }
  EXPECT_EQ(split, expected);
}

TYPED_TEST(OrderedSum, OfNothingIsZero) {
  std::vector<TypeParam> total(3, TypeParam(-1));
  kernels::cpu::ordered_sum(nullptr, 0, 3, std::is_same_v<TypeParam, double>, total.data(), {0, 3});
  EXPECT_EQ(total, std::vector<TypeParam>(3));
}

}  // namespace

}  // namespace mamba::tests
