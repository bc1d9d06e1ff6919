// How CPU top-k splits a tensor into tiles, strips, tasks and pages, and the layout of the
// workspace. Private to kernels/topk.
#pragma once

#include "kernels/topk/cpu_scan.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Tuned constants.
struct TopkTuning {
  static constexpr std::size_t kMaxUnsampledCount = 16384;  // counts up to this are not sampled
  static constexpr double kExpectedHits = 512;  // expected sampled values among the k largest
  static constexpr std::size_t kMaxSamples = std::size_t{1} << 17;
  static constexpr std::size_t kSampleGroup = 32;       // contiguous values: two lines of f32
  static constexpr std::size_t kMaxTopSamples = 16384;  // samples examined individually
  static constexpr std::size_t kMinValuesPerTask = std::size_t{1} << 18;  // minimum values per task
  static constexpr std::size_t kMaxTilesPerTask = 32768;
  static constexpr std::size_t kTasksPerThread = 4;
  static constexpr std::size_t kMaxPage = 65536;  // candidates
};

constexpr std::size_t kTopkBins = 4096;

struct TopkPlan {
  std::size_t count;
  std::size_t k;
  std::size_t tiles;
  std::size_t tasks;     // each a range of tiles
  std::size_t samples;   // values to sample; 0: every nonzero value is a candidate
  std::size_t capacity;  // candidates for which space is guaranteed, whatever their indices
  std::size_t page;      // candidates that a task reserves at once
  std::size_t pages;

  std::size_t strips() const { return tiles * (kTopkTile / kTopkStrip); }
  std::size_t tiles_before(std::size_t task) const { return tiles * task / tasks; }
};

TopkPlan topk_plan(std::size_t count, std::size_t k, unsigned threads);

/// The candidates of one strip, stored contiguously.
struct TopkRun {
  enum State : std::uint32_t { kStored, kOverflow, kRestored };
  std::size_t base;
  std::uint32_t count;
  State state;
};

/// The scratch memory of one task.
struct alignas(64) TopkScratch {
  std::array<float, kTopkStripCapacity> value[2];
  std::array<std::uint16_t, kTopkStripCapacity> index[2];
  std::array<std::uint32_t, kTopkBins> histogram;  // a task has fewer than 2^32 values
  TopkKeyCounts key_counts;

  TopkCandidates candidates(std::size_t which) {
    return {value[which].data(), index[which].data()};
  }
};

struct TopkWorkspace {
  TopkCandidates candidates;  // [pages · page + kTopkSlack]
  float* chosen;              // [k], unless values are f32
  TopkRun* runs;              // [strips]
  TopkTileCount* tiles;       // [tiles]
  float* samples;             // [samples]
  float* top_samples;         // [kMaxTopSamples + kTopkSlack]
  TopkScratch* scratch;       // [tasks]
};

/// Lays out a workspace at the 64-byte aligned address `memory`. If `memory` is null, only the size
/// is computed. Sets `bytes` to the workspace size.
TopkWorkspace topk_workspace(const TopkPlan& plan, std::byte* memory, std::size_t& bytes);

}  // namespace tersor::kernels
