// Times the CUDA scan kernels alone, without torch: a table on stdout, and JSON rows in the file named first.
//
//     scan_bench OUT.json [--every-kernel] [--channel-last] [BATCH,DIM,LENGTH[,DSTATE] ...]
//
// Inputs are drawn as in the figures of docs/kernels.md: one group, D, z, delta_bias and softplus on. Before each call
// the L2 cache is flushed; medians of device events.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cuda/task.h"
#include "mamba/kernels/config_cuda_forward.h"
#include "mamba/kernels/scan.h"

using namespace mamba::kernels;

namespace {

void check(int error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(1);
}

struct Size {
  int64_t batch, dim, length, dstate = 16;
};

/// Device memory filled with `draw`, a sample repeated as often as needed.
template <class T>
T* filled(int64_t count, const std::function<float()>& draw) {
  const size_t sample_size = static_cast<size_t>(std::min<int64_t>(count, 1 << 18));
  std::vector<T> sample(sample_size);
  for (T& x : sample) narrow(draw(), x);
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(count) * sizeof(T)));
  T* data = static_cast<T*>(memory);
  for (int64_t at = 0; at < count; at += static_cast<int64_t>(sample_size)) {
    const size_t part = std::min(sample_size, static_cast<size_t>(count - at));
    check(cudaMemcpy(data + at, sample.data(), part * sizeof(T), cudaMemcpyHostToDevice));
  }
  return data;
}

/// Buffers are left to the end of the process: a problem lives as long as it is timed.
template <class T>
struct Problem {
  ScanParams scan;
  ScanGradParams grad;
  float* workspace = nullptr;
  std::vector<void*> buffers;

  Problem(const Size& size, ScalarType type, bool channel_last) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    auto standard = [&] { return normal(generator); };
    ScanParams& p = scan;
    p.activation_type = type;
    p.delta_softplus = true;
    p.batch = p.sequences = size.batch;
    p.dim = size.dim, p.length = size.length, p.dstate = size.dstate;
    auto activation = [&](const std::function<float()>& draw) -> Activation {
      void* data = keep(filled<T>(p.batch * p.dim * p.length, draw));
      if (channel_last) return {data, p.dim * p.length, 1, p.dim};
      return {data, p.dim * p.length, p.length, 1};
    };
    auto coefficient = [&]() -> Coefficient {
      void* data = keep(filled<T>(p.batch * p.dstate * p.length, standard));
      return {data, 1, p.dstate * p.length, p.dstate * p.length, p.length, 1, false, sizeof(T) == 4};
    };
    p.u = activation(standard);
    p.delta = activation([&] { return 0.5f * uniform(generator) - 4; });
    p.z = activation(standard);
    p.out = activation(standard);
    p.B = coefficient();
    p.C = coefficient();
    int64_t state = 0;
    p.A = keep(filled<float>(p.dim * p.dstate, [&] {
      return -static_cast<float>(state++ % p.dstate + 1) * std::exp(0.1f * normal(generator));
    }));
    p.D = keep(filled<float>(p.dim, standard));
    p.delta_bias = keep(filled<float>(p.dim, [&] { return 0.5f * uniform(generator); }));
    p.last_state = keep(filled<float>(p.batch * p.dim * p.dstate, standard));
    p.checkpoint_slots = checkpoint_slots(p.length, int64_t{0});
    p.checkpoints = keep(filled<float>(p.batch * p.checkpoint_slots * p.dstate * p.dim, standard));
  }
  /// With memory for whichever shape is tried.
  void add_gradients(const Size& size, bool channel_last) {
    const Problem other(size, scan.activation_type, channel_last);  // whose inputs serve as gradients
    buffers.insert(buffers.end(), other.buffers.begin(), other.buffers.end());
    const_cast<Problem&>(other).buffers.clear();
    grad.scan = scan;
    grad.dout = other.scan.z;
    grad.du = other.scan.u;
    grad.ddelta = other.scan.delta;
    grad.dz = other.scan.out;
    const int64_t states = scan.dim * scan.dstate, steps = scan.batch * scan.dstate * scan.length;
    auto floats = [&](int64_t count) { return keep(filled<float>(count, [] { return 0.f; })); };
    grad.dA = floats(states);
    grad.dB = floats(steps);
    grad.dC = floats(steps);
    grad.dD = floats(scan.dim);
    grad.ddelta_bias = floats(scan.dim);
    grad.dinitial_state = floats(scan.batch * states);
    int64_t most = 0;
    for (int shape = 0; shape < cuda::BackwardShapes::kCount; ++shape) {
      most = std::max(most, cuda::backward_plan(grad, {}, cuda::BackwardChoice{shape, 128}).floats);
    }
    workspace = static_cast<float*>(floats(most));
  }
  ~Problem() {
    for (void* buffer : buffers) cudaFree(buffer);
  }
  void* keep(void* buffer) {
    buffers.push_back(buffer);
    return buffer;
  }
};

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
  bool every_kernel = false, channel_last = false;
  std::vector<Size> sizes;
};

void report(std::FILE* json, const char* type, const Size& size, const std::string& what, float ms) {
  std::printf("  %-8s %4ld,%5ld,%7ld N %3ld  %-28s %8.4f ms\n", type, size.batch, size.dim, size.length, size.dstate,
              what.c_str(), ms);
  std::fprintf(json, "{\"type\": \"%s\", \"batch\": %ld, \"dim\": %ld, \"length\": %ld, \"dstate\": %ld, ", type,
               size.batch, size.dim, size.length, size.dstate);
  std::fprintf(json, "\"what\": \"%s\", \"ms\": %.5f}\n", what.c_str(), ms);
  std::fflush(stdout);
}

template <class T>
void time_problem(const char* name, ScalarType type, const Size& size, const Options& options, Timer& timer,
                  std::FILE* json) {
  Problem<T> problem(size, type, options.channel_last);
  const std::string layout = options.channel_last ? " channel_last" : "";
  ScanParams without = problem.scan;
  without.checkpoints = nullptr;
  report(json, name, size, "forward" + layout, timer([&] { return cuda::forward(without, nullptr); }));
  report(json, name, size, "forward+checkpoints" + layout, timer([&] { return cuda::forward(problem.scan, nullptr); }));
  problem.add_gradients(size, options.channel_last);
  report(json, name, size, "backward" + layout,
         timer([&] { return cuda::backward(problem.grad, problem.workspace, nullptr); }));
  if (!options.every_kernel) return;
  for (int shape = 0; shape < cuda::BackwardShapes::kCount; ++shape) {
    for (const int64_t chunks : {1, 2, 3, 4, 6, 8, 11, 16}) {
      const int64_t steps = ceil_div(ceil_div(size.length, chunks), 128) * 128;
      if (chunks > 1 && (steps >= size.length || size.batch > 1)) continue;
      const auto plan = cuda::backward_plan(problem.grad, {}, {shape, chunks > 1 ? steps : 0});
      report(json, name, size, "backward shape " + std::to_string(shape) + " chunks " + std::to_string(plan.chunks),
             timer([&] { return cuda::backward_by_plan(problem.grad, plan, problem.workspace, nullptr); }));
    }
  }
  for (int shape = 0; shape < cuda::RegisterShapes::kCount; ++shape) {
    const int64_t held = cuda::shape_facts(cuda::RegisterShapes(), shape).dstate;
    if (held < size.dstate || held >= 2 * size.dstate) continue;
    report(json, name, size, "registers " + std::to_string(shape),
           timer([&] { return cuda::forward_registers<T>(without, shape, nullptr); }));
  }
  for (const cuda::LaneChoice choice : {cuda::LaneChoice{0, 4}, {0, 6}, {0, 8}, {0, 12}, {1, 2}, {1, 4}}) {
    report(json, name, size, "lanes " + std::to_string(choice.shape) + " warps " + std::to_string(choice.warps),
           timer([&] { return cuda::forward_lanes<T>(without, choice, nullptr); }));
  }
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
    } else if (argument == "--channel-last") {
      options.channel_last = true;
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
