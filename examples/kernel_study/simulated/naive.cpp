// Scheme 1 on a simulated GPU: naive.cu, a warp's 32 threads in lockstep, with the sectors that their loads touch.
#include "simulated/cases.h"
#include "simulated/machine.h"

namespace mamba_study {

namespace {

/// Counts the loads of u; delta's are the same.
void scan_naive(const Problem& p, Traffic& of_u) {
  const int64_t threads = p.batch * p.dim;
  for (int64_t first = 0; first < threads; first += kWarpSize) {
    const int lanes = static_cast<int>(std::min<int64_t>(kWarpSize, threads - first));
    Lanes<std::array<float, kMostStates>> h{};

    for (int64_t t = 0; t < p.length; ++t) {
      Lanes<const float*> address{};
      for (int lane = 0; lane < lanes; ++lane) {
        address[lane] = p.u.row((first + lane) / p.dim, (first + lane) % p.dim) + t * p.u.time_stride;
      }
      of_u.load(address, 1);

      for (int lane = 0; lane < lanes; ++lane) {
        const int64_t batch = (first + lane) / p.dim, channel = (first + lane) % p.dim;
        const float step = p.delta.row(batch, channel)[t * p.delta.time_stride], input = step * *address[lane];
        float sum = 0;
        for (int n = 0; n < p.dstate; ++n) {
          const int64_t row = p.coefficient_row(channel, n);
          const float b = p.B.row(batch, row)[t * p.B.time_stride], c = p.C.row(batch, row)[t * p.C.time_stride];
          h[lane][n] = decay_of(step, rate_of(p.A[channel * p.dstate + n])) * h[lane][n] + input * b;
          sum += c * h[lane][n];
        }
        p.y.row(batch, channel)[t * p.y.time_stride] = sum;
      }
    }
  }
}

double bytes_by_bytes_used(Layout layout) {
  const Inputs inputs(1, 64, 64, 1, layout);
  Traffic traffic{inputs.problem().u.data};
  scan_naive(inputs.problem(), traffic);
  return traffic.bytes_by_bytes_used();
}

void run() {
  check("naive", [](const Problem& p) {
    Traffic ignored{p.u.data};
    scan_naive(p, ignored);
  });
  // 32 lanes, 32 sectors of 32 bytes for 4 bytes each; the cache must keep the rest of a sector for seven more steps.
  expect("bytes asked for by bytes used, time last", bytes_by_bytes_used(Layout::kTimeLast), 8);
  expect("bytes asked for by bytes used, channels last", bytes_by_bytes_used(Layout::kChannelsLast), 1);
}

}  // namespace

}  // namespace mamba_study

int main() {
  mamba_study::run();
}
