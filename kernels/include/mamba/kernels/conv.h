// The causal depthwise convolution in front of the scan: what its kernels are told, and their entry points, by the
// rules of params.h and scan.h.
//
//   seen = initial_state (or zeros), then x        pre[t] = bias + sum_k weight[k] seen[t + k]
//   out  = pre, or silu(pre)                       last_state = the last width - 1 of seen
#pragma once

#include "mamba/kernels/params.h"

struct CUstream_st;

namespace mamba::kernels {

struct ConvParams {
  ScalarType activation_type = ScalarType::kFloat32;
  bool silu = false;
  int64_t batch = 0, dim = 0, length = 0, width = 1;
  int64_t sequences = 0;                 // packed, or the batch
  const int64_t* cu_seqlens = nullptr;   // null: dense
  const void* weight = nullptr;          // (dim, width), wide, contiguous
  const void* bias = nullptr;            // (dim), wide, contiguous
  Activation x, out;                     // packed: tokens outside every sequence give 0; on the CPU they are so before
  Activation initial_state, last_state;  // (sequences, dim, width - 1), activation type
};

/// On CUDA the backward is one call, and its sums are whole: the first dimension of dweight and dbias is 1.
struct ConvGradParams {
  ConvParams conv;
  Activation dout, dlast_state;  // null means zero
  void* dpre = nullptr;  // (batch, dim, length), wide, contiguous: the gradient of pre; the CPU's conv_dpre() writes it
  Activation dx, dinitial_state;
  void* dweight = nullptr;  // (sequences, dim, width), wide: sums to be added in order along the first dimension
  void* dbias = nullptr;    // (sequences, dim), wide; likewise
};

struct ConvUpdateParams {
  ScalarType activation_type = ScalarType::kFloat32;
  bool silu = false;
  int64_t rows = 0, dim = 0, width = 1, slots = 0;
  SlotOfRow slot_of_row;
  const void* weight = nullptr;  // (dim, width), wide, contiguous
  const void* bias = nullptr;    // (dim), wide, contiguous
  Activation state;              // (slots, dim, width - 1), activation type
  Activation x, out;             // (rows, dim), no length
};

namespace cpu {

int64_t conv_forward_work(const ConvParams& params);
void conv_forward(const ConvParams& params, Range range);

/// Goes before conv_backward(). Without work it needs no dpre either.
int64_t conv_dpre_work(const ConvGradParams& params);
void conv_dpre(const ConvGradParams& params, Range range);
int64_t conv_backward_work(const ConvGradParams& params);
void conv_backward(const ConvGradParams& params, Range range);
int64_t conv_update_work(const ConvUpdateParams& params);
void conv_update(const ConvUpdateParams& params, Range range);

}  // namespace cpu

namespace cuda {

int conv_forward(const ConvParams& params, CUstream_st* stream);

/// `workspace` has conv_backward_workspace() bytes, aligned to 16. Both calls must see the same params.
int64_t conv_backward_workspace(const ConvGradParams& params);
int conv_backward(const ConvGradParams& params, void* workspace, CUstream_st* stream);

int conv_update(const ConvUpdateParams& params, CUstream_st* stream);

}  // namespace cuda

}  // namespace mamba::kernels
