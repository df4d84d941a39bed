// The CPU kernels without torch, on one thread, at the ISA level that MAMBA_OPS_CPU chooses, beside scalar loops.
#include <benchmark/benchmark.h>

#include <string>

#include "problems.h"

namespace mamba::benchmarks {
namespace {

void report(benchmark::State& state, int64_t updates) {
  state.counters["updates"] =
      benchmark::Counter(static_cast<double>(updates), benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(cpu::level_name());
}

enum class Pass { kForward, kTrainingForward, kBackward, kScalarForward };

template <class T>
void scan(benchmark::State& state, Sizes s, Pass pass, bool channel_last) {
  Scan<T> problem(s, channel_last);
  if (pass == Pass::kBackward) problem.forward(true);
  for (auto _ : state) {
    switch (pass) {
      case Pass::kForward:
        problem.forward();
        break;
      case Pass::kTrainingForward:
        problem.forward(true);
        break;
      case Pass::kBackward:
        problem.backward();
        break;
      case Pass::kScalarForward:
        problem.scalar();
        break;
    }
    benchmark::ClobberMemory();
  }
  report(state, s.batch * s.dim * s.length * s.dstate);
}

template <class T>
void update(benchmark::State& state, int64_t rows, int64_t dim, int64_t dstate, bool is_scalar) {
  Update<T> problem(rows, dim, dstate);
  for (auto _ : state) {
    is_scalar ? problem.scalar() : problem.update();
    benchmark::ClobberMemory();
  }
  report(state, rows * dim * dstate);
}

template <class T>
const char* const kName = kType<T> == ScalarType::kFloat32   ? "float32"
                          : kType<T> == ScalarType::kFloat16 ? "float16"
                                                             : "bfloat16";

template <class T>
void add(Sizes s, Pass pass, const char* what, bool channel_last = false) {
  const std::string name = std::string(what) + (channel_last ? "_channel_last/" : "/") + kName<T> + "/" +
                           std::to_string(s.batch) + "x" + std::to_string(s.dim) + "x" + std::to_string(s.length) +
                           "x" + std::to_string(s.dstate);
  benchmark::RegisterBenchmark(name.c_str(), scan<T>, s, pass, channel_last)->Unit(benchmark::kMillisecond);
}

template <class T>
void add_update(int64_t rows, int64_t dim, int64_t dstate, bool is_scalar = false) {
  const std::string name = std::string(is_scalar ? "scalar_update/" : "update/") + kName<T> + "/" +
                           std::to_string(rows) + "x" + std::to_string(dim) + "x" + std::to_string(dstate);
  benchmark::RegisterBenchmark(name.c_str(), update<T>, rows, dim, dstate, is_scalar)->Unit(benchmark::kMicrosecond);
}

void register_all() {
  using kernels::BFloat16, kernels::Float16;
  for (const Sizes s : {Sizes{1, 1536, 2048, 16}, Sizes{1, 1536, 2000, 16}, Sizes{1, 256, 1024, 16},
                        Sizes{1, 256, 2048, 16}, Sizes{1, 32, 8192, 16}, Sizes{8, 256, 256, 16},
                        Sizes{1, 1536, 512, 64}, Sizes{1, 1536, 2048, 4}, Sizes{1, 1536, 2048, 1}}) {
    add<float>(s, Pass::kScalarForward, "scalar_forward");
    add<float>(s, Pass::kForward, "forward");
    add<float>(s, Pass::kForward, "forward", true);
    add<BFloat16>(s, Pass::kForward, "forward");
    add<Float16>(s, Pass::kForward, "forward");
    add<float>(s, Pass::kTrainingForward, "training_forward");
    add<float>(s, Pass::kBackward, "backward");
    add<float>(s, Pass::kBackward, "backward", true);
    add<BFloat16>(s, Pass::kBackward, "backward");
  }
  for (const int64_t rows : {1, 16}) {
    add_update<float>(rows, 5120, 16, true);
    add_update<float>(rows, 5120, 16);
    add_update<BFloat16>(rows, 5120, 16);
    add_update<float>(rows, 2048, 128, true);
    add_update<float>(rows, 2048, 128);
  }
}

}  // namespace
}  // namespace mamba::benchmarks

int main(int argc, char** argv) {
  mamba::benchmarks::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
