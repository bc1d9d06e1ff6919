// Exact top-k with error feedback on the CPU, in one pass over the gradient, and the sum of several
// top-k payloads. The bytes do not depend on instruction set, thread count or path.
#pragma once

#include "kernels/host/arguments.h"
#include "kernels/topk/formulas.h"

#include <tersor/threads.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::kernels {

/// Addresses of a payload's sections, aligned to 4 bytes (index_in_tile: 2 bytes).
struct TopkPayload {
  std::uint32_t* first;          // [tiles + 1], tiles = ceil(count / 65,536)
  std::uint16_t* index_in_tile;  // [k]
  void* values;                  // f32[k], bf16[k] or, if `scales` is set, int8 codes [k]
  float* scales = nullptr;       // [ceil(k / 256)], int8 only
};

/// The arguments of topk_encode for one tensor. Value pointers need only the alignment of their
/// element type.
struct TopkEncode {
  const void* gradient;  // `count` values of `dtype`
  Dtype dtype;           // f32, bf16 or f16
  std::size_t count;
  ErrorFeedback feedback;  // without a residual, nothing is written except the payload
  std::size_t k;           // 1 to count, and below 2^32; 0 if count is 0
  Dtype value_dtype;       // f32, bf16 or i8
  TopkPayload payload;
  std::span<std::byte> workspace;  // topk_workspace_bytes; any alignment
  TopkForce force = TopkForce::kNothing;
};

struct TopkResult {
  std::size_t selected;  // number of selected values; below k if fewer than k values are nonzero
  TopkPath path;
  std::size_t non_finite;  // number of non-finite values of p
};

/// Returns the workspace size in bytes for topk_encode with up to `threads` threads. The size is at
/// most 1/16 of the f32 gradient plus the payload if the count is large and k is at most 1 %.
std::size_t topk_workspace_bytes(std::size_t count, std::size_t k, unsigned threads);

/// Writes the payload in ascending order of index, fills unused entries with 0, and leaves p -
/// decoded in the residual.
///
/// If p contains a non-finite value, the payload is k NaNs at the indices 0 … k - 1, and the
/// residual keeps its old values. An in-place f32 residual is restored as (p - a · g) / b wherever
/// p is finite, accurate to one rounding. An in-place bf16 residual needs a second pass over the
/// gradient, because bf16 does not hold p exactly.
///
/// Throws InvalidArgumentError for another dtype, for a k out of range and for a short workspace.
TopkResult topk_encode(const TopkEncode& task, Threads& threads);

/// The sections of a received payload.
struct TopkPayloadView {
  const std::uint32_t* first;
  const std::uint16_t* index_in_tile;
  const void* values;
  const float* scales = nullptr;
};

/// Returns a sentence about the first error in `first` and `index_in_tile`, or null if topk_decode
/// may be called. Reads first[tiles + 1] in full and index_in_tile[k] as far as `first` is valid.
const char* topk_validate(const TopkPayloadView& payload, std::size_t count, std::size_t k);

/// The arguments of topk_decode. The payloads are summed in order in f32, and the sum is rounded
/// once to the output's dtype. The sum starts at +0 or at the old output. Each payload adds value ·
/// factor, and the product and the sum are rounded separately. An int8 value is code · scale,
/// rounded.
struct TopkDecode {
  std::span<const TopkPayloadView> payloads;  // each payload passed topk_validate
  Dtype value_dtype;                          // f32, bf16 or i8
  std::size_t count;                          // of the whole gradient
  std::size_t begin;                          // values [begin, end) of the gradient are decoded
  std::size_t end;
  float factor = 1;
  DecodeMode mode = DecodeMode::kAssign;
  void* output;                    // end - begin values of `dtype`, element-aligned
  Dtype dtype;                     // f32, bf16 or f16
  std::span<std::byte> workspace;  // topk_decode_workspace_bytes; any alignment
};

/// Returns the workspace size in bytes for topk_decode with up to `threads` threads. f32 outputs
/// need 0.
std::size_t topk_decode_workspace_bytes(Dtype dtype, unsigned threads);

/// Throws InvalidArgumentError for another dtype, a range outside the gradient or a short
/// workspace.
void topk_decode(const TopkDecode& task, Threads& threads);

}  // namespace tersor::kernels
