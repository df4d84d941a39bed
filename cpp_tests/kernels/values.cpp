#include "kernels/values.h"

#include <algorithm>
#include <cmath>

namespace mamba::tests {

namespace {

int64_t coefficient_size(const Case& c, const CoefficientForm& x) {
  if (x.form == Form::kConstant) return c.dim * c.dstate;
  return c.batch * c.groups(x) * c.dstate * c.length;
}

/// The value of B or C for a channel, wherever it is shared.
Number coefficient(const Case& c, const CoefficientForm& form, const Numbers& x, int64_t batch, int64_t channel,
                   int64_t n, int64_t time) {
  if (form.form == Form::kConstant) return x[static_cast<size_t>(channel * c.dstate + n)];
  const int64_t groups = c.groups(form), group = channel * groups / c.dim;
  return x[static_cast<size_t>(((batch * groups + group) * c.dstate + n) * c.length + time)];
}

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

ScanValues random_values(const Case& c, uint64_t seed) {
  Random random(seed);
  const int64_t activations = c.batch * c.dim * c.length, states = c.sequences() * c.dim * c.dstate;
  ScanValues v;
  v.u = random.normals(activations, false);
  v.delta = random.normals(activations, false);
  if (!c.has(kSoftplus)) {
    for (Number& x : v.delta) x = random.uniform(0.1, 0.5);
  }
  v.A.resize(static_cast<size_t>(c.dim * c.dstate));
  for (Number& x : v.A) x = {random.uniform(-1.2, -0.2), c.is_complex() ? random.uniform(0, 2) : 0};
  v.B = random.normals(coefficient_size(c, c.B), c.is_complex() && !c.B.is_real);
  v.C = random.normals(coefficient_size(c, c.C), c.is_complex() && !c.C.is_real);
  if (c.has(kD)) v.D = random.normals(c.dim, false);
  if (c.has(kZ)) v.z = random.normals(activations, false);
  if (c.has(kDeltaBias)) {
    v.delta_bias.resize(static_cast<size_t>(c.dim));
    for (Number& x : v.delta_bias) x = random.uniform(0, 0.1);
  }
  if (c.has(kInitialState)) v.initial_state = random.normals(states, c.is_complex());
  return v;
}

ScanResult random_cotangents(const Case& c, uint64_t seed) {
  Random random(seed);
  ScanResult weights;
  weights.out = random.normals(c.batch * c.dim * c.length, false);
  weights.last_state = random.normals(c.sequences() * c.dim * c.dstate, c.is_complex());
  return weights;
}

ScanResult reference_scan(const Case& c, const ScanValues& v) {
  ScanResult result;
  result.out.resize(static_cast<size_t>(c.batch * c.dim * c.length));
  result.last_state.resize(static_cast<size_t>(c.sequences() * c.dim * c.dstate));
  for (int64_t s = 0; s < c.sequences(); ++s) {
    const int64_t batch = c.is_packed() ? 0 : s;
    const int64_t start = c.is_packed() ? c.cu_seqlens[static_cast<size_t>(s)] : 0;
    const int64_t stop = c.is_packed() ? c.cu_seqlens[static_cast<size_t>(s) + 1] : c.length;
    for (int64_t d = 0; d < c.dim; ++d) {
      const size_t channel = static_cast<size_t>(d), row = static_cast<size_t>((s * c.dim + d) * c.dstate);
      const size_t states = static_cast<size_t>(c.dstate);
      Numbers h(states);
      for (size_t n = 0; n < states && !v.initial_state.empty(); ++n) h[n] = v.initial_state[row + n];
      for (int64_t i = start; i < stop; ++i) {
        const int64_t t = c.has(kReverse) ? start + stop - 1 - i : i;
        const size_t at = static_cast<size_t>((batch * c.dim + d) * c.length + t);
        double delta = v.delta[at].real();
        if (!v.delta_bias.empty()) delta += v.delta_bias[channel].real();
        if (c.has(kSoftplus) && delta <= 20) delta = std::log1p(std::exp(delta));
        Number y = 0;
        for (size_t n = 0; n < states; ++n) {
          const int64_t state = static_cast<int64_t>(n);
          h[n] = std::exp(delta * v.A[channel * states + n]) * h[n] +
                 delta * v.u[at] * coefficient(c, c.B, v.B, batch, d, state, t);
          y += coefficient(c, c.C, v.C, batch, d, state, t) * h[n];
        }
        double out = c.is_complex() ? 2 * y.real() : y.real();
        if (!v.D.empty()) out += v.D[channel].real() * v.u[at].real();
        if (!v.z.empty()) out *= v.z[at].real() * logistic(v.z[at].real());
        result.out[at] = out;
      }
      std::copy(h.begin(), h.end(), result.last_state.begin() + static_cast<std::ptrdiff_t>(row));
    }
  }
  return result;
}

double along(const Numbers& x, const Numbers& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i].real() * y[i].real() + x[i].imag() * y[i].imag();
  return sum;
}

testing::AssertionResult close(const Numbers& actual, const Numbers& expected, Tolerance tolerance) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " elements, not " << expected.size();
  }
  double scale = 1;
  for (const Number& x : expected) scale = std::max(scale, std::abs(x));
  size_t wrong = 0, first = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double allowed = tolerance.relative * std::abs(expected[i]) + tolerance.share * scale;
    const bool is_close = std::abs(actual[i] - expected[i]) <= allowed;  // false for NaN
    if (!is_close && wrong++ == 0) first = i;
  }
  if (wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << wrong << " of " << actual.size() << " elements differ; the first, " << first
                                     << ", is " << actual[first] << ", not " << expected[first];
}

}  // namespace mamba::tests
