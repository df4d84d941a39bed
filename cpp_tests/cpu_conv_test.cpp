// The convolution on the CPU, vectorised and generic, against the float64 reference.
#include <gtest/gtest.h>

#include "conv_problem.h"
#include "generic/conv_cpu.h"
#include "kernels/scan_problem.h"

namespace mamba::tests {

namespace {

namespace cpu = kernels::cpu;
using kernels::Range;

constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kChannelLast, Layout::kPadded};
constexpr const char* kResults[] = {"out", "last_state", "dx", "dinitial_state", "dweight", "dbias"};

std::vector<ConvCase> cases() {
  std::vector<ConvCase> table;
  const auto add = [&](const std::string& name, int64_t dim, int64_t length) -> ConvCase& {
    ConvCase& c = table.emplace_back();
    c.name = name;
    c.dim = dim;
    c.length = length;
    return c;
  };
  for (const int64_t width : {1, 2, 3, 4, 7, 16, 17}) add("width_" + std::to_string(width), 19, 21).width = width;
  for (const int64_t length : {0, 1, 2, 3, 33}) add("length_" + std::to_string(length), 16, length);
  for (const int64_t dim : {1, 15, 16, 40}) add("dim_" + std::to_string(dim), dim, 9);
  ConvCase& plain = add("plain", 17, 12);
  plain.bias = plain.silu = plain.initial_state = false;
  ConvCase& packed = add("packed", 18, 40);
  packed.batch = 1;
  packed.cu_seqlens = {0, 4, 5, 5, 30, 40};
  ConvCase& gaps = add("packed_with_gaps", 18, 40);
  gaps.batch = 1;
  gaps.cu_seqlens = {3, 3, 5, 6, 36};
  return table;
}

/// The partial sums of each sequence, and the memory of dpre for the generic kernel.
struct Sums {
  explicit Sums(const ConvProblem& problem)
      : dpre(wide(problem.type), false, problem.x.count()),
        dweight(wide(problem.type), false, problem.c.sequences() * problem.weight.count()),
        dbias(wide(problem.type), false, problem.c.sequences() * problem.c.dim) {}

  Array dpre, dweight, dbias;

  static void add(const Array& partial, View& total) {
    const Numbers x = partial.numbers();
    Numbers sum(static_cast<size_t>(total.count()));
    for (size_t i = 0; i < x.size(); ++i) sum[i % sum.size()] += x[i];
    total.write(sum);
  }
};

/// Each kernel over its work in `parts` pieces, last first.
template <class Kernel>
void run_split(int64_t work, int64_t parts, Kernel&& kernel) {
  for (int64_t i = parts; i-- > 0;) kernel(Range{work * i / parts, work * (i + 1) / parts});
}

void run(ConvProblem& problem, int64_t parts = 1) {
  Sums sums(problem);
  kernels::ConvGradParams g = problem.grad_params(on_host);
  g.dpre = on_host(sums.dpre);
  g.dweight = on_host(sums.dweight);
  g.dbias = on_host(sums.dbias);
  run_split(cpu::conv_forward_work(g.conv), parts, [&](Range range) { cpu::conv_forward(g.conv, range); });
  run_split(cpu::conv_dpre_work(g), parts, [&](Range range) { cpu::conv_dpre(g, range); });
  run_split(cpu::conv_backward_work(g), parts, [&](Range range) { cpu::conv_backward(g, range); });
  if (problem.dweight.count() > 0) Sums::add(sums.dweight, problem.dweight);
  if (problem.dbias.count() > 0) Sums::add(sums.dbias, problem.dbias);
}

class CpuConv : public testing::TestWithParam<ConvCase> {};

TEST_P(CpuConv, AgreesWithTheReference) {
  for (const ScalarType type : kAllTypes) {
    for (const Layout layout : kLayouts) {
      SCOPED_TRACE(std::string(name_of(type)) + "_" + name_of(layout));
      ConvProblem problem(GetParam(), type, layout);
      const std::vector<Numbers> expected = problem.reference();
      run(problem);
      const std::vector<const View*> results = problem.results();
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(close(results[i]->numbers(), expected[i], gradient_tolerance(i >= 4 ? wide(type) : type)))
            << kResults[i];
        EXPECT_TRUE(results[i]->is_clean()) << kResults[i];
      }
    }
  }
}

/// However the channels lie and the work is shared out.
TEST_P(CpuConv, HasTheSameBitsInEveryLayoutAndSplit) {
  for (const ScalarType type : kAllTypes) {
    ConvProblem expected(GetParam(), type, Layout::kContiguous);
    run(expected);
    for (const Layout layout : kLayouts) {
      ConvProblem actual(GetParam(), type, layout);
      run(actual, 5);
      for (size_t i = 0; i < actual.results().size(); ++i) {
        EXPECT_EQ(actual.results()[i]->numbers(), expected.results()[i]->numbers())
            << kResults[i] << " " << name_of(type) << " " << name_of(layout);
      }
    }
  }
}

/// Also into the last of several slots, which rows name by 32 bits.
TEST_P(CpuConv, StepByStepHasTheBitsOfTheWhole) {
  const ConvCase& c = GetParam();
  if (c.is_packed() || !c.initial_state) return;
  for (const ScalarType type : kAllTypes) {
    ConvProblem whole(c, type, Layout::kContiguous), steps(c, type, Layout::kChannelLast);
    run(whole);
    const kernels::ConvParams p = steps.params(on_host);
    std::vector<int32_t> slots;
    for (int64_t row = 0; row < c.batch; ++row) slots.push_back(static_cast<int32_t>(row));
    kernels::ConvUpdateParams u;
    u.activation_type = type;
    u.silu = c.silu;
    u.rows = u.slots = c.batch;
    u.dim = c.dim;
    u.width = c.width;
    u.slot_of_row = {slots.data(), 1, true};
    u.weight = p.weight;
    u.bias = p.bias;
    u.state = p.initial_state;
    for (int64_t t = 0; t < c.length; ++t) {
      const int64_t size = static_cast<int64_t>(steps.x.array.bytes.size()) / steps.x.array.count();
      u.x = p.x;
      u.out = p.out;
      u.x.data = static_cast<std::byte*>(p.x.data) + t * p.x.length_stride * size;
      u.out.data = static_cast<std::byte*>(p.out.data) + t * p.out.length_stride * size;
      run_split(cpu::conv_update_work(u), 3, [&](Range range) { cpu::conv_update(u, range); });
    }
    EXPECT_EQ(steps.out.numbers(), whole.out.numbers()) << name_of(type);
    EXPECT_EQ(steps.initial_state.numbers(), whole.last_state.numbers()) << name_of(type);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CpuConv, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

TEST(CpuConvSteps, PaddingGivesZeroAndTouchesNothing) {
  ConvCase c;
  c.batch = 3;
  c.dim = 18;
  c.length = 1;
  for (const ScalarType type : kAllTypes) {
    ConvProblem problem(c, type, Layout::kChannelLast);
    const Numbers states = problem.initial_state.numbers();
    const kernels::ConvParams p = problem.params(on_host);
    const int64_t slots[] = {-1, 3, int64_t{1} << 40};
    kernels::ConvUpdateParams u;
    u.activation_type = type;
    u.silu = true;
    u.rows = u.slots = c.batch;
    u.dim = c.dim;
    u.width = c.width;
    u.slot_of_row = {slots, 1, false};
    u.weight = p.weight;
    u.bias = p.bias;
    u.state = p.initial_state;
    u.x = p.x;
    u.out = p.out;
    cpu::conv_update(u, {0, cpu::conv_update_work(u)});
    EXPECT_EQ(problem.out.numbers(), Numbers(states.size() / 3));
    EXPECT_EQ(problem.initial_state.numbers(), states);
  }
}

}  // namespace

}  // namespace mamba::tests
