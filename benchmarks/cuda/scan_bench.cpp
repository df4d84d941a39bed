// Times the CUDA scan kernels alone, without torch: a table on stdout, and JSON rows in the file named first.
//
//     scan_bench OUT.json [--forward-only] [--every-kernel] [--channel-last] [--packed MEAN_LENGTH]
//         [--sweep | BATCH,DIM,LENGTH[,DSTATE] ...]
//
// Inputs are drawn as in the figures of docs/kernels.md. Before each call the L2 cache is flushed; medians of device
// events.
#include <string>

#include "cuda/task.h"
#include "scan_problem.h"

using namespace mamba::benchmark;

namespace {

class Timer {
 public:
  Timer() {
    check(cudaMalloc(&flush_, kFlush));
    for (auto& event : events_) check(cudaEventCreate(&event));
  }
  /// The median, in milliseconds.
  float operator()(const std::function<int()>& call) {
    check(call());
    std::vector<float> times;
    for (int i = 0; i < kRepeats; ++i) {
      check(cudaMemsetAsync(flush_, 0, kFlush));
      check(cudaEventRecord(events_[2 * i]));
      check(call());
      check(cudaEventRecord(events_[2 * i + 1]));
    }
    check(cudaDeviceSynchronize());
    for (int i = 0; i < kRepeats; ++i) {
      times.push_back(0);
      check(cudaEventElapsedTime(&times.back(), events_[2 * i], events_[2 * i + 1]));
    }
    std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
    return times[kRepeats / 2];
  }

 private:
  static constexpr int kRepeats = 15;
  static constexpr size_t kFlush = size_t{256} << 20;
  void* flush_ = nullptr;
  cudaEvent_t events_[2 * kRepeats];
};

struct Options {
  bool every_kernel = false, forward_only = false;
  Arrangement arrangement;
  std::vector<Size> sizes;

  std::string suffix() const {
    return (arrangement.channel_last ? " channel_last" : "") +
           (arrangement.packed > 0 ? " packed " + std::to_string(arrangement.packed) : "");
  }
};

/// Sizes from few rows of a long time to many rows of a short one, as far as a quarter of a gigabyte goes.
std::vector<Size> sweep() {
  std::vector<Size> sizes;
  for (const auto& [batch, dim] : {std::pair<int64_t, int64_t>{1, 64}, {1, 1024}, {8, 1024}, {128, 1024}}) {
    for (const int64_t length : {8, 64, 256, 1024, 8192, 131072}) {
      for (const int64_t dstate : {4, 16, 64}) {
        if (batch * dim * length <= int64_t{1} << 26 && batch * dim * length * dstate <= int64_t{1} << 31) {
          sizes.push_back({batch, dim, length, dstate});
        }
      }
    }
  }
  return sizes;
}

void report(std::FILE* json, const char* type, const Size& size, const std::string& what, float ms) {
  std::printf("  %-8s %4ld,%5ld,%7ld N %3ld  %-28s %8.4f ms\n", type, size.batch, size.dim, size.length, size.dstate,
              what.c_str(), ms);
  std::fprintf(json, "{\"type\": \"%s\", \"batch\": %ld, \"dim\": %ld, \"length\": %ld, \"dstate\": %ld, ", type,
               size.batch, size.dim, size.length, size.dstate);
  std::fprintf(json, "\"what\": \"%s\", \"ms\": %.5f}\n", what.c_str(), ms);
  std::fflush(stdout);
}

void time_every_forward(const char* name, const Size& size, const ScanParams& without, Timer& timer, std::FILE* json) {
  for (int shape = 0; shape < cuda::RegisterShapes::kCount; ++shape) {
    const int64_t held = cuda::shape_facts(cuda::RegisterShapes(), shape).dstate;
    if (held < size.dstate || held >= 2 * size.dstate) continue;
    int64_t last_chunks = 0;
    for (const int64_t wanted : {1, 2, 3, 4, 5, 6, 8, 11, 16, 22, 32, 64}) {
      const auto plan = cuda::register_plan(without, shape, cuda::chunk_steps(without, wanted));
      if (plan.chunks == last_chunks || (plan.chunks > 1 && without.cu_seqlens)) continue;
      last_chunks = plan.chunks;
      report(json, name, size, "registers " + std::to_string(shape) + " chunks " + std::to_string(plan.chunks),
             timer([&] { return cuda::forward_by_plan(without, plan, nullptr); }));
    }
  }
  for (int shape = 0; shape < cuda::ForwardLaneShapes::kCount; ++shape) {
    for (const int groups : {1, 2, 3, 4, 5, 6, 8, 10, 12}) {
      const auto plan = cuda::lane_plan(shape, groups);
      if (cuda::forward_by_plan(without, plan, nullptr) != cudaSuccess) {
        cudaGetLastError();  // more threads or shared memory than there are
        continue;
      }
      report(json, name, size, "lanes " + std::to_string(shape) + " groups " + std::to_string(groups),
             timer([&] { return cuda::forward_by_plan(without, plan, nullptr); }));
    }
  }
}

template <class T>
void time_every_backward(const char* name, const Size& size, Problem<T>& problem, Timer& timer, std::FILE* json) {
  for (int shape = 0; shape < cuda::BackwardShapes::kCount; ++shape) {
    for (const int64_t chunks : {1, 2, 3, 4, 6, 8, 11, 16}) {
      const int64_t steps = ceil_div(ceil_div(size.length, chunks), 128) * 128;
      if (chunks > 1 && (steps >= size.length || size.batch > 1)) continue;
      const auto plan = cuda::backward_plan(problem.grad, {}, {shape, chunks > 1 ? steps : 0});
      report(json, name, size, "backward shape " + std::to_string(shape) + " chunks " + std::to_string(plan.chunks),
             timer([&] { return cuda::backward_by_plan(problem.grad, plan, problem.workspace, nullptr); }));
    }
  }
}

template <class T>
void time_problem(const char* name, ScalarType type, const Size& size, const Options& options, Timer& timer,
                  std::FILE* json) {
  Problem<T> problem(size, type, options.arrangement);
  ScanParams without = problem.scan;
  without.checkpoints = nullptr;
  report(json, name, size, "forward" + options.suffix(), timer([&] { return cuda::forward(without, nullptr); }));
  report(json, name, size, "forward+checkpoints" + options.suffix(),
         timer([&] { return cuda::forward(problem.scan, nullptr); }));
  if (!options.forward_only) {
    problem.add_gradients(size, options.arrangement);
    report(json, name, size, "backward" + options.suffix(),
           timer([&] { return cuda::backward(problem.grad, problem.workspace, nullptr); }));
  }
  if (options.every_kernel) time_every_forward(name, size, without, timer, json);
  if (options.every_kernel && !options.forward_only) time_every_backward(name, size, problem, timer, json);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const char* path = argc > 1 ? argv[1] : "/dev/null";
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    Size size;
    if (argument == "--every-kernel") {
      options.every_kernel = true;
    } else if (argument == "--forward-only") {
      options.forward_only = true;
    } else if (argument == "--channel-last") {
      options.arrangement.channel_last = true;
    } else if (argument == "--packed" && i + 1 < argc) {
      options.arrangement.packed = std::atol(argv[++i]);
    } else if (argument == "--sweep") {
      options.sizes = sweep();
    } else if (std::sscanf(argv[i], "%ld,%ld,%ld,%ld", &size.batch, &size.dim, &size.length, &size.dstate) >= 3) {
      options.sizes.push_back(size);
    }
  }
  if (options.sizes.empty()) {
    options.sizes = {{8, 2048, 2048}, {1, 1536, 8192}, {1, 5120, 2048}, {64, 384, 256},
                     {1, 8192, 4096}, {1, 2048, 512},  {128, 768, 256}, {1, 1536, 131072}};
  }
  std::FILE* json = std::fopen(path, "w");
  if (!json) return 1;
  Timer timer;
  for (const Size& size : options.sizes) {
    time_problem<float>("float32", ScalarType::kFloat32, size, options, timer, json);
    time_problem<BFloat16>("bfloat16", ScalarType::kBFloat16, size, options, timer, json);
  }
  std::fclose(json);
}
