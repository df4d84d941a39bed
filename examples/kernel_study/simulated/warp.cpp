// Scheme 2 on a simulated GPU: warp.cu, 32 lanes in lockstep, with a count of the work that the parallel prefix adds.
#include "simulated/cases.h"
#include "simulated/machine.h"

namespace mamba_study {

namespace {

/// Instructions of one lane.
struct Work {
  int64_t multiplications = 0, shuffles = 0;  // a multiply-add counts as a multiplication
};

/// Five rounds. In each, a lane joins the pair `by` lanes before it to its own; the pairs double in span.
Lanes<Pair> prefix_over_lanes(Lanes<Pair> pair, Work& work) {
  for (int by = 1; by < kWarpSize; by *= 2) {
    const Lanes<Pair> earlier = shuffle_up(pair, by);
    for (int lane = by; lane < kWarpSize; ++lane) pair[lane] = join(earlier[lane], pair[lane]);
    work.shuffles += 2;
    work.multiplications += 2;
  }
  return pair;
}

Lanes<Pair> before_lanes(const Lanes<Pair>& until, Work& work) {
  Lanes<Pair> before = shuffle_up(until, 1);
  before[0] = Pair();
  work.shuffles += 2;
  return before;
}

float value(const Rows<const float>& x, const float* row, int64_t t, int64_t length) {
  return t < length ? row[t * x.time_stride] : 0;
}

/// One state of one channel through one tile; returns the state at its end and adds C h to `sum`.
template <int kSteps>
float walk_tile(const Problem& p, int64_t batch, int64_t channel, int n, int64_t first, float state,
                Lanes<std::array<float, kSteps>>& sum, Work& work) {
  const float rate = rate_of(p.A[channel * p.dstate + n]);
  const float *u = p.u.row(batch, channel), *delta = p.delta.row(batch, channel);
  const float *B = p.B.row(batch, p.coefficient_row(channel, n)), *C = p.C.row(batch, p.coefficient_row(channel, n));

  Lanes<std::array<Pair, kSteps>> steps;
  Lanes<Pair> own;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int k = 0; k < kSteps; ++k) {
      const int64_t t = first + lane * kSteps + k;
      const float step = value(p.delta, delta, t, p.length), input = step * value(p.u, u, t, p.length);
      steps[lane][k] = {decay_of(step, rate), input * value(p.B, B, t, p.length)};
      own[lane] = join(own[lane], steps[lane][k]);
    }
  }
  work.multiplications += 2 * (kSteps - 1);  // the first step joins nothing

  const Lanes<Pair> before = before_lanes(prefix_over_lanes(own, work), work);
  float last = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    float h = before[lane].apply(state);
    for (int k = 0; k < kSteps; ++k) {
      h = steps[lane][k].apply(h);
      sum[lane][k] += value(p.C, C, first + lane * kSteps + k, p.length) * h;
    }
    last = h;
  }
  work.multiplications += 1 + kSteps;
  work.shuffles += 3;  // the rate, the state before the tile and the state after it go from lane to lane too
  return last;
}

template <int kSteps>
void scan_warp(const Problem& p, Work& work) {
  for (int64_t warp = 0; warp < p.batch * p.dim; ++warp) {
    const int64_t batch = warp / p.dim, channel = warp % p.dim;
    Lanes<float> own_state{};  // of state n in lane n
    for (int64_t first = 0; first < p.length; first += kWarpSize * kSteps) {
      Lanes<std::array<float, kSteps>> sum{};
      for (int n = 0; n < p.dstate; ++n) {
        own_state[n] = walk_tile<kSteps>(p, batch, channel, n, first, own_state[n], sum, work);
      }
      for (int lane = 0; lane < kWarpSize; ++lane) {
        for (int k = 0; k < kSteps; ++k) {
          const int64_t t = first + lane * kSteps + k;
          if (t < p.length) p.y.row(batch, channel)[t * p.y.time_stride] = sum[lane][k];
        }
      }
    }
  }
}

/// What the recurrence costs a lane for each of its steps; one thread walking through time needs 1 multiply-add.
template <int kSteps>
void count() {
  const Inputs inputs(1, 4, 512, 2, Layout::kTimeLast);
  Work work;
  scan_warp<kSteps>(inputs.problem(), work);
  const double lane_steps = 4.0 * 2 * 512 / kWarpSize;
  const std::string name = std::to_string(kSteps) + " steps a lane: ";
  expect(name + "multiplications for h a step", static_cast<double>(work.multiplications) / lane_steps,
         3 + 9.0 / kSteps);
  expect(name + "shuffles a step", static_cast<double>(work.shuffles) / lane_steps, 15.0 / kSteps);
}

template <int kSteps>
void run() {
  check("warp, " + std::to_string(kSteps) + " steps a lane,", [](const Problem& p) {
    Work ignored;
    scan_warp<kSteps>(p, ignored);
  });
  count<kSteps>();
}

}  // namespace

}  // namespace mamba_study

int main() {
  mamba_study::run<1>();
  mamba_study::run<4>();
  mamba_study::run<8>();
}
