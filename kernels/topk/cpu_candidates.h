// The candidates of all strips, in pages allocated to tasks on demand, and passes over the
// candidates or, if these do not suffice, over p. Private to kernels/topk.
#pragma once

#include "kernels/topk/cpu_plan.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace tersor::kernels {

class CandidateList {
 public:
  /// The write position of a task.
  struct Cursor {
    std::size_t at = 0;
    std::size_t end = 0;
  };

  CandidateList(const TopkPlan& plan, const TopkWorkspace& workspace)
      : plan_(plan), workspace_(workspace) {}

  /// Discards all candidates. Do not call while a task runs.
  void clear() {
    next_page_.store(0, std::memory_order_relaxed);
    too_many_.store(false, std::memory_order_relaxed);
  }

  /// Reserves space for a strip. Returns false if no space is left.
  bool reserve(Cursor& cursor) {
    if (cursor.end - cursor.at >= kTopkStripCapacity) return true;
    const std::size_t page = next_page_.fetch_add(1, std::memory_order_relaxed);
    if (page >= plan_.pages) {
      too_many_.store(true, std::memory_order_relaxed);
      return false;
    }
    cursor = {page * plan_.page, (page + 1) * plan_.page};
    return true;
  }

  TopkCandidates at(std::size_t index) const {
    return {workspace_.candidates.value + index, workspace_.candidates.index + index};
  }

  /// True if a strip found no space, so the list is incomplete.
  bool too_many() const { return too_many_.load(std::memory_order_relaxed); }

 private:
  const TopkPlan& plan_;
  const TopkWorkspace& workspace_;
  std::atomic<std::size_t> next_page_{0};
  std::atomic<bool> too_many_{false};
};

/// Visits the strips of a tile in gradient order.
template <typename Visitor>
void for_each_strip(const TopkPlan& plan, std::size_t tile, Visitor&& visitor) {
  const std::size_t end = std::min(plan.count, (tile + 1) * kTopkTile);
  for (std::size_t begin = tile * kTopkTile; begin < end; begin += kTopkStrip)
    visitor(TopkStrip{begin, std::min(kTopkStrip, end - begin)});
}

/// Visits the stored candidates of a tile in order, merged into as few runs as possible.
template <typename Visitor>
void for_each_stored_run(const TopkPlan& plan, const TopkWorkspace& workspace, std::size_t tile,
                         Visitor&& visitor) {
  TopkRun merged{};
  const auto visit = [&] {
    const TopkCandidates& all = workspace.candidates;
    if (merged.count != 0)
      visitor(TopkRunView{all.value + merged.base, all.index + merged.base, merged.count});
  };
  for_each_strip(plan, tile, [&](TopkStrip strip) {
    const TopkRun& run = workspace.runs[strip.begin / kTopkStrip];
    if (run.state != TopkRun::kStored || run.count == 0) return;
    if (run.base == merged.base + merged.count) {
      merged.count += run.count;
      return;
    }
    visit();
    merged = run;
  });
  visit();
}

/// The source of values for the passes after the scan: the stored candidates or, if `reread` is
/// set, p, computed again strip by strip.
struct TopkSource {
  const TopkPlan& plan;
  const TopkWorkspace& workspace;
  const TopkScan* reread = nullptr;

  /// Visits all values of a tile whose keys are at least `low`, in order, and possibly further
  /// values. A visited run is valid until the next visit.
  template <typename Visitor>
  void for_each_run(std::size_t tile, std::uint32_t low, TopkScratch& scratch,
                    Visitor&& visitor) const {
    if (reread == nullptr) return for_each_stored_run(plan, workspace, tile, visitor);
    TopkScan scan = *reread;
    scan.thresholds = {low, low, low};
    for_each_strip(plan, tile, [&](TopkStrip strip) {
      const TopkCandidates out = scratch.candidates(0);
      const std::size_t found = topk_scan_strip(scan, strip, out, scratch.key_counts);
      visitor(TopkRunView{out.value, out.index, found});
    });
  }

  /// Like for_each_run, for visitors without need for indices: visited runs may have none.
  template <typename Visitor>
  void for_each_values(std::size_t tile, TopkScratch& scratch, Visitor&& visitor) const {
    if (reread == nullptr) return for_each_stored_run(plan, workspace, tile, visitor);
    for_each_strip(plan, tile, [&](TopkStrip strip) {
      float* p = scratch.candidates(0).value;
      topk_compute(*reread, strip, p);
      visitor(TopkRunView{p, nullptr, strip.count});
    });
  }
};

/// Splits a run into pieces that fit into a TopkScratch.
template <typename Visitor>
void for_each_piece(const TopkRunView& run, Visitor&& visitor) {
  for (std::size_t begin = 0; begin < run.count; begin += kTopkStrip)
    visitor(TopkRunView{run.value + begin, run.index == nullptr ? nullptr : run.index + begin,
                        std::min(kTopkStrip, run.count - begin)});
}

}  // namespace tersor::kernels
