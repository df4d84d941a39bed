// Scheme 3 on a simulated GPU: shared.cu, a block whose threads share tiles. A barrier is the end of one loop over the
// threads; without it, a thread could begin the next loop while others are still in this one.
#include "simulated/cases.h"
#include "simulated/machine.h"

namespace mamba_study {

namespace {

constexpr int kSteps = 32, kPitch = kSteps + 4, kMostRows = 32, kThreads = 128;

struct Shared {
  float u[kMostRows][kPitch], delta[kMostRows][kPitch], B[kMostRows][kPitch], C[kMostRows][kPitch];
  float products[kThreads][kPitch];
};

/// A block: `lanes` threads for every one of `channels` channels, a state each as far as there are states.
struct Block {
  const Problem& p;
  int lanes, channels;
  int64_t batch, channel;
  Traffic* of_u;
};

/// All threads together, a quad of neighbours in memory for each thread at a time; transposed where those are rows.
void load_tile(const Block& block, const Rows<const float>& x, const float* from, int rows, int64_t rows_there,
               int64_t first, float (&tile)[kMostRows][kPitch], Traffic* traffic = nullptr) {
  const bool along_rows = x.along_rows();
  const int64_t steps_there = block.p.length - first;
  for (int begin = 0; begin < rows * kSteps / 4; begin += kWarpSize) {
    Lanes<const float*> address{};
    for (int lane = 0; lane < kWarpSize && begin + lane < rows * kSteps / 4; ++lane) {
      const int i = begin + lane;
      const int row = along_rows ? i % (rows / 4) * 4 : i / (kSteps / 4);
      const int step = along_rows ? i / (rows / 4) : i % (kSteps / 4) * 4;
      for (int k = 0; k < 4; ++k) {
        const int r = row + (along_rows ? k : 0), t = step + (along_rows ? 0 : k);
        const bool exists = r < rows_there && t < steps_there;
        const float* element = exists ? from + r * x.row_stride + (first + t) * x.time_stride : nullptr;
        if (k == 0) address[lane] = element;
        tile[r][t] = exists ? *element : 0;  // with delta = 0 a step changes no state
      }
    }
    if (traffic) traffic->load(address, 4);
  }
}

void walk(const Block& block, Shared& shared, std::array<float, kThreads>& h, int64_t first) {
  const Problem& p = block.p;
  const int64_t channels_there = p.dim - block.channel;
  const int coefficient_rows = p.dstate == 1 ? block.channels : block.lanes;
  const int64_t row = p.coefficient_row(block.channel, 0), rows_there = p.coefficient_rows(block.channel);

  load_tile(block, p.u, p.u.row(block.batch, block.channel), block.channels, channels_there, first, shared.u,
            block.of_u);
  load_tile(block, p.delta, p.delta.row(block.batch, block.channel), block.channels, channels_there, first,
            shared.delta);
  load_tile(block, p.B, p.B.row(block.batch, row), coefficient_rows, rows_there, first, shared.B);
  load_tile(block, p.C, p.C.row(block.batch, row), coefficient_rows, rows_there, first, shared.C);
  // __syncthreads(): a state needs what other threads loaded.

  for (int thread = 0; thread < kThreads; ++thread) {
    const int c = thread / block.lanes, n = thread % block.lanes, r = p.dstate == 1 ? c : n;
    const bool has_state = c < channels_there && n < p.dstate;
    const float rate = has_state ? rate_of(p.A[(block.channel + c) * p.dstate + n]) : 0;
    for (int t = 0; t < kSteps; ++t) {
      const float delta = shared.delta[c][t];
      h[thread] = decay_of(delta, rate) * h[thread] + delta * shared.u[c][t] * shared.B[r][t];
      shared.products[thread][t] = shared.C[r][t] * h[thread];
    }
  }
  // __syncthreads(): a sum needs the products of other threads, and the next tile may overwrite this one.

  for (int i = 0; i < block.channels * kSteps; ++i) {
    const int c = i / kSteps, t = i % kSteps;
    float sum = 0;
    for (int n = 0; n < p.dstate; ++n) sum += shared.products[c * block.lanes + n][t];
    if (c < channels_there && first + t < p.length) {
      p.y.row(block.batch, block.channel + c)[(first + t) * p.y.time_stride] = sum;
    }
  }
  // No third barrier: the next tile's loads leave the products alone, and its states come after its first barrier.
}

void scan_shared(const Problem& p, Traffic* of_u = nullptr) {
  const int lanes = p.dstate <= 4 ? 4 : p.dstate <= 16 ? 16 : 32, channels = kThreads / lanes;
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    for (int64_t channel = 0; channel < p.dim; channel += channels) {
      Shared shared;
      std::array<float, kThreads> h{};
      for (int64_t first = 0; first < p.length; first += kSteps) {
        walk({p, lanes, channels, batch, channel, of_u}, shared, h, first);
      }
    }
  }
}

double bytes_by_bytes_used(Layout layout) {
  const Inputs inputs(1, 64, 64, 1, layout);
  Traffic traffic{inputs.problem().u.data};
  scan_shared(inputs.problem(), &traffic);
  return traffic.bytes_by_bytes_used();
}

/// Each lane reads four steps of a row of its own.
int cycles(int pitch) {
  Lanes<int> word;
  for (int lane = 0; lane < kWarpSize; ++lane) word[lane] = lane * pitch;
  return cycles_of_quads(word);
}

void run() {
  check("shared", [](const Problem& p) { scan_shared(p); });
  expect("bytes asked for by bytes used, time last", bytes_by_bytes_used(Layout::kTimeLast), 1);
  expect("bytes asked for by bytes used, channels last", bytes_by_bytes_used(Layout::kChannelsLast), 1);
  expect("cycles to read 16 bytes from each of 32 rows, 32 words apart", cycles(kSteps), 32);
  expect("cycles to read 16 bytes from each of 32 rows, 36 words apart", cycles(kPitch), 4);
}

}  // namespace

}  // namespace mamba_study

int main() {
  mamba_study::run();
}
