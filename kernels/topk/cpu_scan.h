// The top-k loops over values, compiled per instruction set: scan a strip, select, count. Private
// to kernels/topk.
#pragma once

#include "kernels/host/arguments.h"
#include "kernels/topk/formulas.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Values per scan call. A tile holds a whole number of strips.
constexpr std::size_t kTopkStrip = 2048;
/// Entries after the last result that a vector store may overwrite.
constexpr std::size_t kTopkSlack = 16;
/// Entries that a strip may need, whatever the values.
constexpr std::size_t kTopkStripCapacity = kTopkStrip + kTopkSlack;

/// The keys used by a scan, in ascending order.
struct TopkThresholds {
  std::uint32_t threshold;  // values with this key or more are candidates
  std::uint32_t guess;      // values with this key or more will probably be sent
  std::uint32_t above;      // almost surely, fewer than k values reach this key
};

/// The residual left by the scan for a value that will probably be sent.
enum class TopkClear : std::uint8_t { kNothing, kFull, kBf16 };  // p, 0, p - bf16(p)

/// Returns the remainder of a value sent as f32 (kFull) or bf16.
inline float topk_remainder(TopkClear clear, float p) {
  return clear == TopkClear::kFull ? 0.0f : topk_bf16_remainder(p);
}

struct TopkScan {
  const void* gradient;
  Dtype dtype;
  ErrorFeedback feedback;  // if residual_out is null, nothing is written
  TopkThresholds thresholds;
  std::uint32_t limit = kInfinityBits;  // not below any threshold
  TopkClear clear = TopkClear::kNothing;
};

/// Values [begin, begin + count) of the gradient, within one tile.
struct TopkStrip {
  std::size_t begin;
  std::size_t count;
};

/// Output arrays for candidates: p and the index within the tile.
struct TopkCandidates {
  float* value;
  std::uint16_t* index;
};

/// Candidates in ascending order of index.
struct TopkRunView {
  const float* value;
  const std::uint16_t* index;
  std::size_t count;
};

/// Counts of keys that reach each threshold, and the count of keys that reach the limit.
struct TopkKeyCounts {
  std::uint64_t threshold = 0;
  std::uint64_t guess = 0;
  std::uint64_t above = 0;
  std::uint64_t non_finite = 0;
};

/// Keys [low, high).
struct TopkKeys {
  std::uint32_t low;
  std::uint32_t high;
};

struct TopkTileCount {
  std::uint32_t larger;
  std::uint32_t equal;
};

/// Computes p and writes p to `out`.
void topk_compute(const TopkScan& scan, TopkStrip strip, float* out);

/// Computes p, writes the residual, adds to the counts and writes the candidates in order. The
/// residual becomes p, or the remainder selected by `clear` if the key reaches the guess. A
/// non-finite p leaves the old residual. Returns the number of candidates, at most strip.count. Up
/// to kTopkSlack entries after the last candidate are overwritten.
std::size_t topk_scan_strip(const TopkScan& scan, TopkStrip strip, TopkCandidates out,
                            TopkKeyCounts& key_counts);

/// Copies the candidates with keys in the range, in order, and returns their number. Nothing is
/// written beyond `space` entries, and `space` must suffice. If the run has no indices (null), no
/// indices are copied.
std::size_t topk_select(const TopkRunView& run, TopkKeys keys, TopkCandidates out,
                        std::size_t space);

/// Counts the keys of a run above `key`, and the keys equal to `key`.
TopkTileCount topk_count(const TopkRunView& run, std::uint32_t key);

}  // namespace tersor::kernels
