// What the two sides of a ScanCase share: the element types, and the sizes of the problem.
#pragma once

#include <limits>
#include <vector>

#include "cuda_scan_case.h"
#include "generic/scan.h"
#include "mamba/kernels/config.h"

namespace mamba::testing {

using kernels::narrow;
using kernels::widen;

inline constexpr double kUnwritten = std::numeric_limits<double>::quiet_NaN();

template <class T>
T narrowed(double x) {
  T value;
  kernels::narrow(x, value);
  return value;
}

template <class F>
auto with_type(kernels::ScalarType type, F&& f) {
  if (type == kernels::ScalarType::kFloat16) return f(kernels::Float16());
  if (type == kernels::ScalarType::kBFloat16) return f(kernels::BFloat16());
  return f(float());
}

template <class To>
std::vector<To> converted(const std::vector<double>& from) {
  std::vector<To> to(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = narrowed<To>(from[i]);
  return to;
}
template <class From>
std::vector<double> widened(const std::vector<From>& from) {
  std::vector<double> to(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = kernels::widen(from[i]);
  return to;
}

inline kernels::ScanParams sizes(const ScanCase& c) {
  kernels::ScanParams p;
  p.delta_softplus = c.softplus;
  p.reverse = c.reverse;
  p.batch = c.batch, p.dim = c.dim, p.length = c.length, p.dstate = c.dstate;
  p.sequences = c.sequences();
  p.checkpoint_slots = kernels::checkpoint_slots(p.length, c.cu_seqlens.empty() ? int64_t{0} : p.sequences);
  return p;
}

}  // namespace mamba::testing
