// A scan problem in device memory for the benchmark of the CUDA kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "mamba/kernels/config_cuda_forward_plan.h"
#include "mamba/kernels/scan.h"

namespace mamba::benchmark {

using namespace kernels;

inline void check(int error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(1);
}

struct Size {
  int64_t batch, dim, length, dstate = 16;
};

/// How the activations lie in memory, and the mean length of packed sequences; 0: not packed.
struct Arrangement {
  bool channel_last = false;
  int64_t packed = 0;
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

/// One group, D, z, delta_bias and softplus on. With packed sequences batch rows follow each other as one.
template <class T>
struct Problem {
  ScanParams scan;
  ScanGradParams grad;
  float* workspace = nullptr;
  std::vector<void*> buffers;

  Problem(const Size& size, ScalarType type, const Arrangement& arrangement) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    auto standard = [&] { return normal(generator); };
    ScanParams& p = scan;
    p.activation_type = type;
    p.delta_softplus = true;
    p.batch = p.sequences = size.batch;
    p.dim = size.dim, p.length = size.length, p.dstate = size.dstate;
    if (arrangement.packed > 0) pack(arrangement.packed, generator);
    auto activation = [&](const std::function<float()>& draw) -> Activation {
      void* data = keep(filled<T>(p.batch * p.dim * p.length, draw));
      if (arrangement.channel_last) return {data, p.dim * p.length, 1, p.dim};
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
    p.last_state = keep(filled<float>(p.sequences * p.dim * p.dstate, standard));
    p.checkpoint_slots = checkpoint_slots(p.length, p.cu_seqlens ? p.sequences : int64_t{0});
    p.checkpoints = keep(filled<float>(p.batch * p.checkpoint_slots * p.dstate * p.dim, standard));
    const int64_t most_chunks = ceil_div(p.length, cuda::kChunkUnit);
    p.carries = keep(filled<float>(p.sequences * most_chunks * (p.dstate + 1) * p.dim, standard));
  }
  /// With memory for whichever shape is tried.
  void add_gradients(const Size& size, const Arrangement& arrangement) {
    const Problem other(size, scan.activation_type, arrangement);  // whose inputs serve as gradients
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
    grad.dinitial_state = floats(scan.sequences * states);
    int64_t most = 0;
    for (int shape = 0; shape < cuda::BackwardShapes::kCount; ++shape) {
      most = std::max(most, cuda::backward_plan(grad, {}, cuda::BackwardChoice{shape, 128}).floats);
    }
    workspace = static_cast<float*>(floats(most));
  }
  /// Lengths are drawn from 1 to twice the mean.
  void pack(int64_t mean, std::mt19937& generator) {
    ScanParams& p = scan;
    p.length *= p.batch;
    p.batch = 1;
    std::uniform_int_distribution<int64_t> lengths(1, 2 * mean - 1);
    std::vector<int64_t> bounds = {0};
    while (bounds.back() < p.length) bounds.push_back(std::min(p.length, bounds.back() + lengths(generator)));
    p.sequences = static_cast<int64_t>(bounds.size()) - 1;
    void* memory = nullptr;
    check(cudaMalloc(&memory, bounds.size() * sizeof(int64_t)));
    check(cudaMemcpy(memory, bounds.data(), bounds.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
    p.cu_seqlens = static_cast<int64_t*>(keep(memory));
  }
  ~Problem() {
    for (void* buffer : buffers) cudaFree(buffer);
  }
  void* keep(void* buffer) {
    buffers.push_back(buffer);
    return buffer;
  }
};

}  // namespace mamba::benchmark
