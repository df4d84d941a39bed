// The kernels as operators of torch: torch.ops.load_library("libmamba_study.so"), then
// torch.ops.mamba_study.scan_naive, scan_warp and scan_shared. float32 on CUDA, forward only.
//
// u, delta (batch, dim, seqlen); A (dim, dstate) with B, C (batch, dstate, seqlen), or A (dim) with B, C of u's shape:
// one state for each channel. Any strides; time or channels contiguous is fast. Returns y, laid out like u.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "scan.h"

namespace mamba_study {

namespace {

using at::Tensor;

struct Arguments {
  const char* op;
  const Tensor &u, &delta, &A, &B, &C;
};

void check_tensor(const Arguments& a, const char* name, const Tensor& x) {
  TORCH_CHECK(x.device() == a.u.device(), a.op, ": expected ", name, " to be on the device of u (", a.u.device(),
              "), but got ", x.device(), "; move all tensors of a call to one device");
  TORCH_CHECK_TYPE(x.scalar_type() == at::kFloat, a.op, ": expected ", name, " to be float32, but got ",
                   c10::getDtypeNames(x.scalar_type()).first);
  TORCH_CHECK_NOT_IMPLEMENTED(!(x.requires_grad() && at::GradMode::is_enabled()), a.op, ": expected ", name,
                              " not to require grad, but got one that does; the study has no backward, use "
                              "mamba::selective_scan or torch.no_grad()");
}

void check_shape(const Arguments& a, const char* name, const Tensor& x, const char* symbols, at::IntArrayRef shape) {
  TORCH_CHECK_VALUE(x.sizes() == shape, a.op, ": expected ", name, " to have the shape ", symbols, " = ", shape,
                    ", but got ", x.sizes());
}

void check(const Arguments& a) {
  check_tensor(a, "u", a.u);
  TORCH_CHECK_VALUE(a.u.dim() == 3, a.op, ": expected u to have the shape (batch, dim, seqlen), but got ", a.u.sizes());
  check_tensor(a, "delta", a.delta);
  check_shape(a, "delta", a.delta, "of u (batch, dim, seqlen)", a.u.sizes());
  check_tensor(a, "A", a.A);
  const int64_t dim = a.u.size(1);
  TORCH_CHECK_VALUE((a.A.dim() == 1 || a.A.dim() == 2) && a.A.size(0) == dim, a.op,
                    ": expected A to have the shape (dim) or (dim, dstate) with dim = ", dim, ", but got ",
                    a.A.sizes());
  const bool per_channel = a.A.dim() == 1;
  const int64_t rows = per_channel ? dim : a.A.size(1);
  TORCH_CHECK_VALUE(per_channel || (rows >= 1 && rows <= kMostStates), a.op, ": expected A to have 1 to ", kMostStates,
                    " states, but got ", rows, "; mamba::selective_scan takes any number");
  const char* symbols = per_channel ? "of u (batch, dim, seqlen)" : "(batch, dstate, seqlen)";
  check_tensor(a, "B", a.B);
  check_shape(a, "B", a.B, symbols, {a.u.size(0), rows, a.u.size(2)});
  check_tensor(a, "C", a.C);
  check_shape(a, "C", a.C, symbols, {a.u.size(0), rows, a.u.size(2)});
  TORCH_CHECK(a.u.is_cuda(), a.op, ": expected the tensors to be on a CUDA device, but got ", a.u.device(),
              "; the programs study_*_simulated run the schemes on the CPU");
}

/// Rows of `rows` channels or states. A row that all channels share is repeated, by a stride of 0.
template <class T>
Rows<T> rows_of(const Tensor& x, T* data, int64_t rows) {
  Rows<T> result{data, x.stride(0), rows == x.size(1) ? x.stride(1) : 0, x.stride(2)};
  // A quad is whole where every line begins at a multiple of 16 bytes.
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0 && result.batch_stride % 4 == 0;
  if (is_aligned && result.time_stride == 1 && result.row_stride % 4 == 0) result.quads = Quads::kAlongTime;
  if (is_aligned && result.along_rows() && result.time_stride % 4 == 0) result.quads = Quads::kAlongRows;
  return result;
}

Problem problem_of(const Arguments& a, const Tensor& A, const Tensor& y) {
  Problem p;
  p.batch = a.u.size(0), p.dim = a.u.size(1), p.length = a.u.size(2);
  p.dstate = A.dim() == 1 ? 1 : static_cast<int>(A.size(1));
  const int64_t coefficient_rows = p.dstate == 1 ? p.dim : p.dstate;
  p.A = A.const_data_ptr<float>();
  p.u = rows_of(a.u, a.u.const_data_ptr<float>(), p.dim);
  p.delta = rows_of(a.delta, a.delta.const_data_ptr<float>(), p.dim);
  p.B = rows_of(a.B, a.B.const_data_ptr<float>(), coefficient_rows);
  p.C = rows_of(a.C, a.C.const_data_ptr<float>(), coefficient_rows);
  p.y = rows_of(y, y.mutable_data_ptr<float>(), p.dim);
  return p;
}

/// On the current stream of u's device, through torch's device-generic interface: no CUDA library of torch is linked.
template <class Launch>
Tensor run(const Arguments& a, const Launch& launch) {
  check(a);
  const c10::DeviceGuard guard(a.u.device());
  Tensor y = at::empty_like(a.u);
  if (y.numel() == 0) return y;
  const c10::impl::VirtualGuardImpl device(a.u.device().type());
  const Tensor A = a.A.contiguous();
  const cudaError_t error =
      launch(problem_of(a, A, y), static_cast<cudaStream_t>(device.getStream(a.u.device()).native_handle()));
  TORCH_CHECK(error == cudaSuccess, a.op,
              ": expected the kernel to be launched, but got the error: ", cudaGetErrorString(error),
              "; was the library built for this GPU's architecture?");
  return y;
}

Tensor naive(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C) {
  return run({"scan_naive", u, delta, A, B, C}, scan_naive);
}

Tensor warp(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
            int64_t lane_steps) {
  TORCH_CHECK_VALUE(lane_steps == 1 || lane_steps == 4 || lane_steps == 8,
                    "scan_warp: expected lane_steps to be 1, 4 or 8, but got ", lane_steps);
  return run({"scan_warp", u, delta, A, B, C},
             [=](const Problem& p, cudaStream_t stream) { return scan_warp(p, static_cast<int>(lane_steps), stream); });
}

Tensor shared(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C) {
  return run({"scan_shared", u, delta, A, B, C}, scan_shared);
}

}  // namespace

}  // namespace mamba_study

TORCH_LIBRARY(mamba_study, m) {
  m.def("scan_naive(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C) -> Tensor");
  m.def("scan_warp(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, int lane_steps=4) -> Tensor");
  m.def("scan_shared(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C) -> Tensor");
}

// One function for every device: it names the devices that it does not take.
TORCH_LIBRARY_IMPL(mamba_study, CompositeExplicitAutograd, m) {
  m.impl("scan_naive", mamba_study::naive);
  m.impl("scan_warp", mamba_study::warp);
  m.impl("scan_shared", mamba_study::shared);
}
