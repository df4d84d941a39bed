#include "simulated/cases.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>

namespace mamba_study {

namespace {

std::vector<float> normal(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = distribution(generator);
  return values;
}

}  // namespace

template <class T>
Rows<T> Inputs::rows_of(T* data, int64_t rows) const {
  if (layout_ == Layout::kTimeLast) return {data, rows * problem_.length, problem_.length, 1};
  return {data, rows, 1, problem_.batch * rows};
}

Inputs::Inputs(int64_t batch, int64_t dim, int64_t length, int dstate, Layout layout, bool shared_row)
    : layout_(layout) {
  Problem& p = problem_;
  p.batch = batch, p.dim = dim, p.length = length, p.dstate = dstate;
  const int64_t rows = dstate > 1 ? dstate : shared_row ? 1 : dim;
  A_ = normal(dim * dstate, 1);
  u_ = normal(batch * dim * length, 2);
  delta_ = normal(batch * dim * length, 3);
  B_ = normal(batch * rows * length, 4);
  C_ = normal(batch * rows * length, 5);
  y_.assign(u_.size(), std::numeric_limits<float>::quiet_NaN());
  for (float& x : A_) x = -std::exp(x);
  for (float& x : delta_) x = std::abs(x) / 10;
  for (float& x : C_) x /= std::sqrt(static_cast<float>(dstate));

  p.A = A_.data();
  p.u = rows_of<const float>(u_.data(), dim);
  p.delta = rows_of<const float>(delta_.data(), dim);
  p.B = rows_of<const float>(B_.data(), rows);
  p.C = rows_of<const float>(C_.data(), rows);
  p.y = rows_of(y_.data(), dim);
  if (shared_row) p.B.row_stride = p.C.row_stride = 0;
}

double Inputs::largest_error() const {
  const Problem& p = problem_;
  double largest = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t d = 0; d < p.dim; ++d) {
      std::vector<double> h(static_cast<size_t>(p.dstate));
      for (int64_t t = 0; t < p.length; ++t) {
        const double step = p.delta.row(b, d)[t * p.delta.time_stride], u = p.u.row(b, d)[t * p.u.time_stride];
        double y = 0;
        for (int n = 0; n < p.dstate; ++n) {
          const int64_t row = p.coefficient_row(d, n);
          const double B = p.B.row(b, row)[t * p.B.time_stride], C = p.C.row(b, row)[t * p.C.time_stride];
          double& state = h[static_cast<size_t>(n)];
          state = std::exp(step * p.A[d * p.dstate + n]) * state + step * B * u;
          y += C * state;
        }
        const double error = std::abs(p.y.row(b, d)[t * p.y.time_stride] - y);
        if (!(error <= largest)) largest = error;  // NaN too
      }
    }
  }
  return largest;
}

std::string Inputs::name() const {
  const Problem& p = problem_;
  return "(" + std::to_string(p.batch) + ", " + std::to_string(p.dim) + ", " + std::to_string(p.length) + "), dstate " +
         std::to_string(p.dstate) + (layout_ == Layout::kTimeLast ? ", time last" : ", channels last") +
         (p.B.row_stride == 0 ? ", one row of B and C" : "");
}

void check(const std::string& scheme, const std::function<void(const Problem&)>& scan) {
  constexpr double kTolerance = 1e-5;
  const int64_t sizes[][3] = {{2, 4, 8}, {1, 32, 256}, {8, 128, 64}, {2, 1, 33}, {2, 5, 1}, {0, 4, 8}, {1, 37, 161}};
  for (const auto& size : sizes) {
    for (const int dstate : {1, 3, 16, 32}) {
      for (const Layout layout : {Layout::kTimeLast, Layout::kChannelsLast}) {
        for (const bool shared_row : {false, true}) {
          if (shared_row && dstate > 1) continue;
          const Inputs inputs(size[0], size[1], size[2], dstate, layout, shared_row);
          scan(inputs.problem());
          const double error = inputs.largest_error();
          std::printf("%s %s: largest error %.2g\n", scheme.c_str(), inputs.name().c_str(), error);
          if (!(error < kTolerance)) std::exit(EXIT_FAILURE);
        }
      }
    }
  }
}

void expect(const std::string& what, double counted, double expected) {
  std::printf("%s: %.4g\n", what.c_str(), counted);
  if (std::abs(counted - expected) > 1e-9 * expected) {
    std::printf("  expected %.4g\n", expected);
    std::exit(EXIT_FAILURE);
  }
}

}  // namespace mamba_study
