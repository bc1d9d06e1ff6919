// The loops of top-k over values, for each instruction set: scan a strip, select, count. Inside
// kernels/topk only.
#pragma once

#include "kernels/host/arguments.h"
#include "kernels/topk/formulas.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Values that one call scans; a tile holds a whole number of strips.
constexpr std::size_t kTopkStrip = 2048;
/// Places behind the last result into which a vector store may reach.
constexpr std::size_t kTopkSlack = 16;
/// Places that a strip may need, whatever it holds.
constexpr std::size_t kTopkStripRoom = kTopkStrip + kTopkSlack;

/// The keys that matter to a scan, in ascending order.
struct TopkLadder {
  std::uint32_t threshold;  // from here values are candidates
  std::uint32_t guess;      // from here they will probably be sent
  std::uint32_t above;      // from here they are almost surely fewer than k
};

/// What the scan leaves in the residual where a value will probably be sent.
enum class TopkClear : std::uint8_t { kNothing, kWhole, kBf16 };  // p, 0, p - bf16(p)

/// What remains of a value when it is sent as f32 (kWhole) or bf16.
inline float topk_remainder(TopkClear clear, float p) {
  return clear == TopkClear::kWhole ? 0.0f : topk_bf16_remainder(p);
}

struct TopkScan {
  const void* gradient;
  Dtype dtype;
  ErrorFeedback feedback;  // no residual_out: nothing is written
  TopkLadder ladder;
  std::uint32_t limit = kInfinityBits;  // not below the ladder
  TopkClear clear = TopkClear::kNothing;
};

/// Values [begin, begin + count) of the gradient, all of one tile.
struct TopkStrip {
  std::size_t begin;
  std::size_t count;
};

/// Where candidates are written: p and the index in the tile.
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

/// How many keys reach each one of the ladder, and how many the limit.
struct TopkTally {
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

/// Computes p and writes it to `out`.
void topk_compute(const TopkScan& scan, TopkStrip strip, float* out);

/// Computes p, writes the residual (p; from the guess on what `clear` says; the old value where p
/// is not finite), adds to the tally and writes the candidates: at most strip.count, in order; up
/// to kTopkSlack places behind them are overwritten. Returns how many they are.
std::size_t topk_scan_strip(const TopkScan& scan, TopkStrip strip, TopkCandidates out,
                            TopkTally& tally);

/// Copies the candidates whose keys are in the range, in order; writes nothing beyond `room`
/// places, which must suffice. A run without indices (null) has none copied. Returns how many they
/// are.
std::size_t topk_select(const TopkRunView& run, TopkKeys keys, TopkCandidates out,
                        std::size_t room);

/// How many of a run's keys are larger than `key`, and how many equal.
TopkTileCount topk_count(const TopkRunView& run, std::uint32_t key);

}  // namespace tersor::kernels
