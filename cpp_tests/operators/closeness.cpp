#include <algorithm>
#include <cstring>

#include "operators/scan_call.h"

namespace mamba::tests {

namespace {

at::ScalarType real_of(at::ScalarType dtype) {
  return dtype == at::kComplexDouble ? at::kDouble : dtype == at::kComplexFloat ? at::kFloat : dtype;
}

}  // namespace

Closeness result_closeness(at::ScalarType dtype) {
  switch (real_of(dtype)) {
    case at::kDouble:
      return {1e-11, 1e-12};
    case at::kBFloat16:
      return {0x1p-8, 4e-6};
    case at::kHalf:
      return {0x1p-11, 4e-6};
    default:
      return {1e-5, 2e-6};
  }
}

Closeness gradient_closeness(at::ScalarType dtype) {
  const Closeness result = result_closeness(dtype);
  return {result.relative, 4 * result.share};
}

testing::AssertionResult is_close(const Tensor& actual, const Tensor& expected, Closeness closeness) {
  if (actual.sizes() != expected.sizes()) {
    return testing::AssertionFailure() << "the shape is " << actual.sizes() << ", not " << expected.sizes();
  }
  if (actual.numel() == 0) return testing::AssertionSuccess();
  const Tensor wanted = expected.detach().cpu(), magnitude = wanted.abs();
  const double scale = std::max(1.0, magnitude.max().item<double>());
  const Tensor error = (actual.detach().to(wanted.device(), wanted.scalar_type()) - wanted).abs();
  const Tensor wrong = (error <= closeness.relative * magnitude + closeness.share * scale).logical_not();
  const int64_t count = wrong.sum().item<int64_t>();
  if (count == 0) return testing::AssertionSuccess();
  const int64_t first = wrong.flatten().nonzero()[0].item<int64_t>();
  return testing::AssertionFailure() << count << " of " << actual.numel() << " elements differ; the first, " << first
                                     << ", is " << actual.detach().flatten()[first].item() << ", not "
                                     << wanted.flatten()[first].item();
}

testing::AssertionResult has_bits_of(const Tensor& actual, const Tensor& expected) {
  if (actual.scalar_type() != expected.scalar_type() || actual.sizes() != expected.sizes()) {
    return testing::AssertionFailure() << "another dtype or shape: " << actual.toString() << actual.sizes();
  }
  const Tensor x = actual.detach().cpu().contiguous(), y = expected.detach().cpu().contiguous();
  if (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "the bits differ";
}

}  // namespace mamba::tests
