// The scan kernels on the CPU, the generic ones and those that the operators call, against a float64 loop and its
// differences, over the whole case table.
#include <algorithm>

#include "generic/cpu.h"
#include "kernels/scan_problem.h"

namespace mamba::tests {

namespace {

constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kChannelLast, Layout::kPadded};

std::vector<std::vector<std::byte>> bits(const std::vector<const Array*>& arrays) {
  std::vector<std::vector<std::byte>> copies;
  for (const Array* x : arrays) copies.push_back(x->bytes);
  return copies;
}

constexpr CpuKernels kGeneric = {"generic", kernels::generic::cpu::forward_work, kernels::generic::cpu::forward,
                                 kernels::generic::cpu::backward_work, kernels::generic::cpu::backward};
const auto kFamilies = testing::Values(kCpuKernels, kGeneric);

using ScanParam = std::tuple<CpuKernels, Case, ScalarType>;

class ScanKernel : public testing::TestWithParam<ScanParam> {
 protected:
  const CpuKernels& family() const { return std::get<0>(GetParam()); }
  const Case& problem() const { return std::get<1>(GetParam()); }
  ScalarType type() const { return std::get<2>(GetParam()); }

  void forward(ScanProblem& scan, bool with_checkpoints = true) const { run_forward(scan, with_checkpoints, family()); }
  void backward(ScanProblem& scan) const { run_backward(scan, family()); }
};

TEST_P(ScanKernel, ForwardMatchesTheReference) {
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    ScanProblem scan(problem(), type(), layout);
    forward(scan);
    const ScanResult expected = reference_scan(problem(), scan.values);
    EXPECT_TRUE(close(scan.result().out, expected.out, result_tolerance(type())));
    EXPECT_TRUE(close(scan.result().last_state, expected.last_state, result_tolerance(scan.wide_type)));
    EXPECT_TRUE(scan.is_clean());
  }
}

TEST_P(ScanKernel, CheckpointsDoNotChangeTheBits) {
  ScanProblem with(problem(), type(), Layout::kContiguous), without(problem(), type(), Layout::kContiguous);
  forward(with, /*with_checkpoints=*/true);
  forward(without, /*with_checkpoints=*/false);
  EXPECT_EQ(with.out.array.bytes, without.out.array.bytes);
  EXPECT_EQ(with.last_state.bytes, without.last_state.bytes);
}

/// The float64 adjoint, which AdjointMatchesDifferences proves, is the oracle of the others.
TEST_P(ScanKernel, BackwardMatchesFloat64) {
  for (const Layout layout : kLayouts) {
    SCOPED_TRACE(name_of(layout));
    ScanProblem scan(problem(), type(), layout);
    forward(scan);
    backward(scan);
    ScanProblem exact(problem(), ScalarType::kFloat64, Layout::kContiguous, scan.values, scan.cotangents);
    run_forward(exact);
    run_backward(exact);
    const ScanValues actual = scan.gradients(), expected = exact.gradients();
    for (const auto& [name, input] : kInputs) {
      const bool is_activation = input == &ScanValues::u || input == &ScanValues::delta || input == &ScanValues::z;
      EXPECT_TRUE(close(actual.*input, expected.*input, gradient_tolerance(is_activation ? type() : scan.wide_type)))
          << "gradient of " << name;
    }
    EXPECT_TRUE(scan.is_clean());
  }
}

/// Cuts the whole range into random pieces and does them in random order.
template <class Kernel>
void in_random_pieces(int64_t work, uint64_t seed, Kernel&& kernel) {
  Random random(seed);
  std::vector<int64_t> cuts = {0, work};
  for (int i = 0; i < 5 && work > 0; ++i) cuts.push_back(random.below(work + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<kernels::Range> pieces;
  for (size_t i = 1; i < cuts.size(); ++i) pieces.push_back({cuts[i - 1], cuts[i]});
  for (size_t i = pieces.size(); i > 1; --i) {
    std::swap(pieces[i - 1], pieces[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
  for (const kernels::Range& piece : pieces) kernel(piece);
}

TEST_P(ScanKernel, AnySplitGivesTheSameBits) {
  ScanProblem whole(problem(), type(), Layout::kContiguous);
  forward(whole);
  backward(whole);
  for (const uint64_t seed : {1u, 2u, 3u}) {
    ScanProblem split(problem(), type(), Layout::kContiguous);
    const kernels::ScanParams forward = split.forward_params(on_host);
    in_random_pieces(family().forward_work(forward), seed,
                     [&](kernels::Range piece) { family().forward(forward, piece); });
    const kernels::ScanGradParams backward = split.backward_params(on_host);
    in_random_pieces(family().backward_work(backward), seed,
                     [&](kernels::Range piece) { family().backward(backward, piece); });
    EXPECT_EQ(bits(split.written()), bits(whole.written()));
  }
}

/// A gradient is the same, bit for bit, whatever else is asked for; and what is not asked for is not written.
TEST_P(ScanKernel, EachGradientAlone) {
  ScanProblem all(problem(), type(), Layout::kContiguous);
  forward(all);
  backward(all);
  constexpr size_t kFirst = 3;  // in written(): after the forward's results
  const size_t gradients = all.written().size() - kFirst;
  for (size_t chosen = 0; chosen < gradients; ++chosen) {
    ScanProblem one(problem(), type(), Layout::kContiguous);
    forward(one);
    kernels::ScanGradParams p = one.backward_params(on_host);
    void** const results[] = {&p.du.data, &p.ddelta.data, &p.dz.data, &p.dA, &p.dB, &p.dC, &p.dD, &p.ddelta_bias};
    for (size_t i = 0; i < std::size(results); ++i) {
      if (i != chosen) *results[i] = nullptr;
    }
    const auto before = bits(one.written());
    family().backward(p, {0, family().backward_work(p)});
    for (size_t i = 0; i < std::size(results); ++i) {
      const auto& expected = i == chosen ? all.written()[kFirst + i]->bytes : before[kFirst + i];
      EXPECT_EQ(one.written()[kFirst + i]->bytes, expected) << "gradient " << i << " when " << chosen << " is chosen";
    }
    EXPECT_EQ(one.dinitial_state.bytes, all.dinitial_state.bytes);
  }
}

TEST_P(ScanKernel, AbsentCotangentsAreZero) {
  for (const bool is_out_absent : {true, false}) {
    ScanProblem zero(problem(), type(), Layout::kContiguous), absent(problem(), type(), Layout::kContiguous);
    if (is_out_absent) {
      zero.dout.fill(0);
    } else {
      zero.dlast_state.fill(0);
    }
    forward(zero);
    backward(zero);
    forward(absent);
    kernels::ScanGradParams p = absent.backward_params(on_host);
    if (is_out_absent) {
      p.dout = {};
    } else {
      p.dlast_state = nullptr;
    }
    family().backward(p, {0, family().backward_work(p)});
    const ScanValues actual = absent.gradients(), expected = zero.gradients();
    for (const auto& [name, input] : kInputs) EXPECT_EQ(actual.*input, expected.*input) << name;
  }
}

std::string scan_name(const testing::TestParamInfo<ScanParam>& info) {
  const auto& [family, problem, type] = info.param;
  return std::string(family.name) + "_" + problem.name + "_" + name_of(type);
}
INSTANTIATE_TEST_SUITE_P(Cases, ScanKernel,
                         testing::Combine(kFamilies, testing::ValuesIn(case_table()), testing::ValuesIn(kAllTypes)),
                         scan_name);

using AdjointParam = std::tuple<CpuKernels, Case>;

class ScanAdjoint : public testing::TestWithParam<AdjointParam> {};

/// Along random directions of one input after another, the kernel's gradient is the reference's central difference.
TEST_P(ScanAdjoint, MatchesDifferences) {
  const CpuKernels& family = std::get<0>(GetParam());
  const Case& c = std::get<1>(GetParam());
  ScanProblem scan(c, ScalarType::kFloat64, Layout::kContiguous);
  run_forward(scan, /*with_checkpoints=*/true, family);
  run_backward(scan, family);
  const ScanValues gradients = scan.gradients();
  Random random(5);
  for (const auto& entry : kInputs) {
    const auto input = entry.second;
    const bool is_real = (input == &ScanValues::B && c.B.is_real) || (input == &ScanValues::C && c.C.is_real);
    const bool may_be_complex = input == &ScanValues::A || input == &ScanValues::B || input == &ScanValues::C ||
                                input == &ScanValues::initial_state;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Numbers direction = random.normals(static_cast<int64_t>((scan.values.*input).size()),
                                               c.is_complex() && may_be_complex && !is_real);
      auto loss = [&](double step) {
        ScanValues moved = scan.values;
        for (size_t i = 0; i < direction.size(); ++i) (moved.*input)[i] += step * direction[i];
        const ScanResult result = reference_scan(c, moved);
        return along(scan.cotangents.out, result.out) + along(scan.cotangents.last_state, result.last_state);
      };
      // Of fourth order: its error is far below any mistake worth finding.
      constexpr double kStep = 1e-4;
      const double expected = (8 * (loss(kStep) - loss(-kStep)) - (loss(2 * kStep) - loss(-2 * kStep))) / (12 * kStep);
      ASSERT_EQ((gradients.*input).size(), direction.size()) << entry.first;
      EXPECT_NEAR(along(gradients.*input, direction), expected, 1e-9 * (1 + std::abs(expected))) << entry.first;
    }
  }
}

std::string adjoint_name(const testing::TestParamInfo<AdjointParam>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name;
}
INSTANTIATE_TEST_SUITE_P(Cases, ScanAdjoint, testing::Combine(kFamilies, testing::ValuesIn(case_table())),
                         adjoint_name);

}  // namespace

}  // namespace mamba::tests
