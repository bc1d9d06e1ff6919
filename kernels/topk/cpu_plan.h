// How a top-k on the CPU is cut into tiles, strips, tasks and pages, and where each part of its
// workspace lies. Inside kernels/topk only.
#pragma once

#include "kernels/topk/cpu_scan.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The numbers that were tuned.
struct TopkTuning {
  static constexpr std::size_t kSampleAbove = 16384;  // counts up to here are not sampled
  static constexpr double kSampledChosen = 512;       // sampled values that are among the k
  static constexpr std::size_t kMostSamples = std::size_t{1} << 17;
  static constexpr std::size_t kSampleGroup = 32;  // values read at one place: two lines of f32
  static constexpr std::size_t kMostTopSamples = 16384;             // that are looked at one by one
  static constexpr std::size_t kTaskValues = std::size_t{1} << 18;  // a task has at least as many
  static constexpr std::size_t kMostTaskTiles = 32768;
  static constexpr std::size_t kTasksAThread = 4;
  static constexpr std::size_t kMostPage = 65536;  // candidates
};

constexpr std::size_t kTopkBins = 4096;

struct TopkPlan {
  std::size_t count;
  std::size_t k;
  std::size_t tiles;
  std::size_t tasks;     // each a range of tiles
  std::size_t samples;   // values to sample; 0: every value that is not zero is a candidate
  std::size_t capacity;  // candidates that are sure to fit, wherever they lie
  std::size_t page;      // candidates that a task asks for at once
  std::size_t pages;

  std::size_t strips() const { return tiles * (kTopkTile / kTopkStrip); }
  std::size_t tiles_before(std::size_t task) const { return tiles * task / tasks; }
};

TopkPlan topk_plan(std::size_t count, std::size_t k, unsigned threads);

/// Candidates of one strip, side by side.
struct TopkRun {
  enum State : std::uint32_t { kStored, kTooMany, kUndone };
  std::size_t base;
  std::uint32_t count;
  State state;
};

/// What one task works in.
struct alignas(64) TopkScratch {
  std::array<float, kTopkStripRoom> value[2];
  std::array<std::uint16_t, kTopkStripRoom> index[2];
  std::array<std::uint32_t, kTopkBins> histogram;  // a task has fewer than 2^32 values
  TopkTally tally;

  TopkCandidates candidates(std::size_t which) {
    return {value[which].data(), index[which].data()};
  }
};

struct TopkWorkspace {
  TopkCandidates candidates;  // [pages · page + kTopkSlack]
  float* chosen;              // [k], for values that are not f32
  TopkRun* runs;              // [strips]
  TopkTileCount* tiles;       // [tiles]
  float* samples;             // [samples]
  float* top_samples;         // [kMostTopSamples + kTopkSlack]
  TopkScratch* scratch;       // [tasks]
};

/// The parts of a workspace that begins at `memory`, 64-byte aligned; null only measures. `bytes`
/// becomes where they end.
TopkWorkspace topk_workspace(const TopkPlan& plan, std::byte* memory, std::size_t& bytes);

}  // namespace tersor::kernels
