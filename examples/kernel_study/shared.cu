// Scheme 3, shared: a thread for each (batch, channel, state), tiles of time in shared memory.
//
// A block takes some channels of one batch row through time, 32 steps at a time: (1) all threads together store a tile
// of u, delta, B and C that is already in their registers; (2) they ask for the next tile; (3) each thread advances its
// one state through the tile and leaves C h for every step; (4) all together sum over the states and write y.
// Global memory is read once, in whole lines, in the order that suits the layout; the order in which a state needs its
// inputs is shared memory's concern. And the loads of (2) have all of (3) to arrive.
#include "scan.h"
#include "tile.cuh"

namespace mamba_study {

namespace {

/// kLanes neighbouring threads share a channel, a state each. Where dstate is less, some only load and sum: with one
/// state three of four, so that a block still has the hands to load a tile of B and C for every channel.
template <int states>
struct Shape {
  static constexpr bool kPerChannel = states == 1;
  static constexpr int kLanes = states < 4 ? 4 : states;
  static constexpr int kThreads = 128, kChannels = kThreads / kLanes;
  static constexpr int kCoefficientRows = kPerChannel ? kChannels : kLanes;
};

template <class Shape>
struct Shared {
  TileRows<Shape::kChannels> delta, input;  // input: delta * u
  TileRows<Shape::kCoefficientRows> B, C;
  // C h, by channel and state; the spare row moves each channel on by four banks, for reads along the channels.
  TileRows<Shape::kLanes + 1> products[Shape::kChannels];
};

/// The part of the next tile that a thread holds in its registers.
template <class Shape>
struct Incoming {
  Fragment<Shape::kChannels, Shape::kThreads> u, delta;
  Fragment<Shape::kCoefficientRows, Shape::kThreads> B, C;

  __device__ Incoming(const Problem& p, int64_t batch, int64_t channel)
      : u(p.u, p.u.row(batch, channel), p.dim - channel, p.u.along_rows()),
        // In u's direction, whatever its own layout: the two are multiplied.
        delta(p.delta, p.delta.row(batch, channel), p.dim - channel, p.u.along_rows()),
        B(p.B, p.B.row(batch, p.coefficient_row(channel, 0)), p.coefficient_rows(channel), p.B.along_rows()),
        C(p.C, p.C.row(batch, p.coefficient_row(channel, 0)), p.coefficient_rows(channel), p.C.along_rows()) {}

  __device__ __forceinline__ void fetch(int64_t steps_there) {
    u.fetch(steps_there);
    delta.fetch(steps_there);
    B.fetch(steps_there);
    C.fetch(steps_there);
  }

  /// delta * u is formed here, once for a channel and step; the states would form it once each.
  __device__ __forceinline__ void store(Shared<Shape>& tile) {
    u.multiply(delta);
    delta.store(tile.delta);
    u.store(tile.input);
    B.store(tile.B);
    C.store(tile.C);
  }
};

/// What a state needs for four steps, in four reads of 16 bytes.
struct FourSteps {
  Quad delta, input, B, C;

  __device__ __forceinline__ FourSteps(const float* delta_row, const float* input_row, const float* B_row,
                                       const float* C_row, int t)
      : delta(read_quad(delta_row + t)),
        input(read_quad(input_row + t)),
        B(read_quad(B_row + t)),
        C(read_quad(C_row + t)) {}
};

/// One state through the tile. Four steps are read while the four before them are computed: with so few warps on a
/// processor nothing else would fill the wait.
__device__ __forceinline__ float advance(const float* delta, const float* input, const float* B, const float* C,
                                         float rate, float h, float* products) {
  FourSteps next(delta, input, B, C, 0);
#pragma unroll
  for (int t = 0; t < kTileSteps; t += 4) {
    const FourSteps now = next;
    if (t + 4 < kTileSteps) next = FourSteps(delta, input, B, C, t + 4);
    Quad product;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      h = decay_of(now.delta.x[k], rate) * h + now.input.x[k] * now.B.x[k];
      product.x[k] = now.C.x[k] * h;
    }
    write_quad(products + t, product);
  }
  return h;
}

/// Sums over the states, always in the same order, and writes y: neighbouring threads to neighbours in memory.
template <class Shape>
__device__ __forceinline__ void write_sums(const Problem& p, const Shared<Shape>& tile, float* y, int64_t channels,
                                           int64_t steps) {
  const bool along_rows = p.y.along_rows();
  const int thread = static_cast<int>(threadIdx.x);
  const int row = along_rows ? thread % Shape::kChannels : thread / kTileSteps;
  const int step = along_rows ? thread / Shape::kChannels : thread % kTileSteps;
  const int row_jump = along_rows ? 0 : Shape::kThreads / kTileSteps, step_jump = along_rows ? Shape::kLanes : 0;
  y += row * p.y.row_stride + step * p.y.time_stride;
  const int64_t jump = row_jump * p.y.row_stride + step_jump * p.y.time_stride;
#pragma unroll
  for (int i = 0; i < Shape::kChannels * kTileSteps / Shape::kThreads; ++i) {
    const int r = row + i * row_jump, t = step + i * step_jump;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < Shape::kLanes; ++n) {
      const float product = tile.products[r][n][t];  // not only where needed: the reads need not wait for each other
      sum += n < p.dstate ? product : 0.f;
    }
    if (r < channels && t < steps) y[i * jump] = sum;
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads) scan_shared_kernel(const __grid_constant__ Problem p) {
  __shared__ Shared<Shape> tile;
  const int64_t blocks = ceil_div(p.dim, Shape::kChannels);
  const int64_t batch = blockIdx.x / blocks, channel = blockIdx.x % blocks * Shape::kChannels;
  const int row = static_cast<int>(threadIdx.x) / Shape::kLanes, n = static_cast<int>(threadIdx.x) % Shape::kLanes;
  const int coefficient_row = Shape::kPerChannel ? row : n;
  const bool has_state = channel + row < p.dim && n < p.dstate;
  const float rate = has_state ? rate_of(p.A[(channel + row) * p.dstate + n]) : 0.f;

  Incoming<Shape> next(p, batch, channel);
  next.fetch(p.length);
  float h = 0;
  for (int64_t first = 0; first < p.length; first += kTileSteps) {
    next.store(tile);
    __syncthreads();  // the tile is whole, and the sums over the last one are done: products may be overwritten
    if (first + kTileSteps < p.length) next.fetch(p.length - first - kTileSteps);
    h = advance(tile.delta[row], tile.input[row], tile.B[coefficient_row], tile.C[coefficient_row], rate, h,
                tile.products[row][n]);
    __syncthreads();  // all products are there, and nobody needs the inputs of this tile any more
    write_sums(p, tile, p.y.row(batch, channel) + first * p.y.time_stride, p.dim - channel, p.length - first);
  }
}

}  // namespace

cudaError_t scan_shared(const Problem& p, cudaStream_t stream) {
  with_states(p.dstate, [&](auto states) {
    using S = Shape<states.value>;
    const auto blocks = static_cast<unsigned>(p.batch * ceil_div(p.dim, S::kChannels));
    scan_shared_kernel<S><<<blocks, S::kThreads, 0, stream>>>(p);
  });
  return cudaGetLastError();
}

}  // namespace mamba_study
