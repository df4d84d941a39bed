// The CPU kernels share torch's threads, and no bit depends on how many there are. In a program of its own: what counts
// the threads must see them start.
#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>

#include <filesystem>

#include "operators/update_call.h"

namespace mamba::tests {

namespace {

int64_t threads_of_this_process() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

/// Large enough to be worth sharing, and not a multiple of anything.
Case large() {
  return Case("large").size(2, 150, 300, 16).coefficients(grouped(3), shared());
}

TEST(Threads, StartForALargeCallAlone) {
  at::set_num_threads(1);
  const ScanCall call = make_call(large(), {});
  const ScanCall small = make_call(Case("small").size(1, 3, 5, 2), {});
  run(call);
  const int64_t before = threads_of_this_process();
  at::set_num_threads(4);
  run(small);
  EXPECT_EQ(threads_of_this_process(), before) << "a small call is not worth a thread";
  run(call);
  EXPECT_EQ(threads_of_this_process(), before + 3) << "four threads share a large call";
}

TEST(Threads, DoNotChangeTheBits) {
  UpdateShape shape;
  shape.channels = {700};
  shape.batch = shape.slots = 33;
  shape.dstate = 16;
  const auto results = [&](int threads) {
    at::set_num_threads(threads);
    std::vector<Tensor> all;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const Case& c : {large(), large().packed(300, {0, 40, 40, 299}), Case("cut_along_time").size(1, 9, 2100, 6),
                            Case("complex").size(2, 40, 100, 16).transition(Transition::kComplex)}) {
        const ScanCall call = make_call(c, {at::kCPU, dtype});
        const auto [out, last_state] = run(call);
        all.push_back(out);
        all.push_back(last_state);
        for (const Tensor& gradient : gradients(call, run)) all.push_back(gradient);
      }
      UpdateCall step = make_update(shape, {at::kCPU, dtype});
      all.push_back(run(step));
      all.push_back(step.state);
    }
    return all;
  };
  const std::vector<Tensor> expected = results(1);
  for (const int threads : {2, 3, 7}) {
    const std::vector<Tensor> actual = results(threads);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(has_bits_of(actual[i], expected[i])) << "result " << i << " with " << threads << " threads";
    }
  }
}

}  // namespace

}  // namespace mamba::tests
