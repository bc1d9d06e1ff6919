// Exact top-k with error feedback on the CPU: one pass over the gradient, the same bytes whatever
// the instruction set, the threads and the path. And the sum of several such payloads.
#pragma once

#include "kernels/host/arguments.h"
#include "kernels/topk/formulas.h"

#include <tersor/threads.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tersor::kernels {

/// Where the sections of a payload lie; 4-byte aligned (index_in_tile: 2).
struct TopkPayload {
  std::uint32_t* first;          // [tiles + 1], tiles = ceil(count / 65,536)
  std::uint16_t* index_in_tile;  // [k]
  void* values;                  // f32[k], bf16[k] or, with scales, int8 codes [k]
  float* scales = nullptr;       // [ceil(k / 256)], int8 only
};

/// One tensor. Pointers of values need only their element's alignment.
struct TopkEncode {
  const void* gradient;  // `count` values of `dtype`
  Dtype dtype;           // f32, bf16 or f16
  std::size_t count;
  ErrorFeedback feedback;  // without a residual: a pure read pass
  std::size_t k;           // 1 to count and below 2^32; 0 where count is 0
  Dtype value_dtype;       // f32, bf16 or i8
  TopkPayload payload;
  std::span<std::byte> workspace;  // topk_workspace_bytes; any alignment
  TopkForce force = TopkForce::kNothing;
};

struct TopkResult {
  std::size_t kept;  // below k where fewer values are not zero
  TopkPath path;
  std::size_t non_finite;  // values of p that poisoned the tensor
};

/// Bytes of workspace that topk_encode needs with up to `threads` threads. At 1 % and below, and
/// where counts are large, at most a sixteenth of the f32 gradient plus the payload.
std::size_t topk_workspace_bytes(std::size_t count, std::size_t k, unsigned threads);

/// Writes the payload, in ascending order of index, unused places 0, and leaves p - decoded in the
/// residual. Where p holds a value that is not finite, the payload is k NaNs at the indices 0 … k -
/// 1 and the residual keeps its old values; in place and f32 to one rounding where p is finite:
/// they come back as (p - a · g) / b. Residuals of bf16 in place need a second pass over the
/// gradient, since p is not read back exactly. Throws InvalidArgument for another dtype, a k out of
/// range or a workspace that is too short.
TopkResult topk_encode(const TopkEncode& task, Threads& threads);

/// The sections of a payload that came from elsewhere.
struct TopkPayloadView {
  const std::uint32_t* first;
  const std::uint16_t* index_in_tile;
  const void* values;
  const float* scales = nullptr;
};

/// What is wrong with a payload's `first` and `index_in_tile`, as a sentence; null where
/// topk_decode may be called. Reads first[tiles + 1], and index_in_tile[k] only as far as `first`
/// is sound.
const char* topk_validate(const TopkPayloadView& payload, std::size_t count, std::size_t k);

/// The sum of the payloads, in their order, in f32 and rounded once into the output:
/// acc = +0 or the old value; for each payload acc = acc + value · factor, both rounded, where an
/// int8 value is code · scale, rounded.
struct TopkDecode {
  std::span<const TopkPayloadView> payloads;  // each one validated
  Dtype value_dtype;                          // f32, bf16 or i8
  std::size_t count;                          // of the whole gradient
  std::size_t begin;                          // the values [begin, end) of it are decoded
  std::size_t end;
  float factor = 1;
  DecodeMode mode = DecodeMode::kAssign;
  void* output;                    // end - begin values of `dtype`, element-aligned
  Dtype dtype;                     // f32, bf16 or f16
  std::span<std::byte> workspace;  // topk_decode_workspace_bytes; any alignment
};

/// Bytes of workspace that topk_decode needs with up to `threads` threads; 0 for f32 outputs.
std::size_t topk_decode_workspace_bytes(Dtype dtype, unsigned threads);

/// Throws InvalidArgument for another dtype, a range out of the gradient or a workspace too short.
void topk_decode(const TopkDecode& task, Threads& threads);

}  // namespace tersor::kernels
