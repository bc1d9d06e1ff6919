// Distributes a call's segments over threads. Segments are cut into slices; a task is a run of
// adjacent slices. Slices start at multiples of 65,536 values. Each block and each counter of
// random numbers therefore lies in a single slice, and the bytes do not depend on the number of
// threads.
#pragma once

#include <tersor/align.h>
#include <tersor/codec.h>
#include <tersor/threads.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

namespace tersor::encoding {

/// Values per slice. The cost of handing a slice to a thread is negligible at this size.
inline constexpr std::size_t kSliceCount = std::size_t{1} << 16;
/// Tasks per thread. A late thread then does not delay the other threads.
inline constexpr std::size_t kTasksPerThread = 4;

/// Values [first, first + count) of a segment, for a task. `Offset` accumulates the sizes of
/// segments: bytes of a payload, or a struct with several offsets.
template <typename Offset>
struct SliceAt {
  std::size_t segment = 0;
  std::size_t first = 0;
  std::size_t count = 0;
  Offset offset = {};  ///< size of all earlier segments
  std::size_t task = 0;
  bool is_last = true;  ///< true for the segment's last slice, which pads the sections
};
using Slice = SliceAt<std::size_t>;

inline std::size_t slices_of(const Segment& segment) {
  return ceil_div(segment.count, kSliceCount);
}

inline std::size_t slices_of(std::span<const Segment> segments) {
  std::size_t slices = 0;
  for (const Segment& segment : segments) slices += slices_of(segment);
  return slices;
}

/// Returns the maximum number of tasks for a call on `threads` threads.
constexpr std::size_t max_tasks(unsigned threads) {
  return threads > 1 ? threads * kTasksPerThread : 1;
}

/// Divides `count` items into tasks of contiguous items and calls work(task, begin, end) on the
/// available threads.
template <typename Work>
void parallel_for(std::size_t count, Threads* threads, const Work& work) {
  const std::size_t tasks = std::min(count, max_tasks(threads == nullptr ? 1 : threads->count()));
  const auto run_task = [&](std::size_t task) {
    work(task, task * count / tasks, (task + 1) * count / tasks);
  };
  if (tasks > 1) return threads->run(tasks, run_task);
  if (tasks == 1) run_task(0);
}

/// Visits slices [begin, end) in order. Adjacent slices of the same segment are visited together.
template <typename SegmentBytes, typename Visitor>
void visit_slices(std::span<const Segment> segments, std::size_t begin, std::size_t end,
                  std::size_t task, const SegmentBytes& segment_bytes, const Visitor& visit) {
  using Offset = std::decay_t<decltype(segment_bytes(Segment{}))>;
  std::size_t before = 0;  // slices before the segment
  Offset offset = {};
  for (std::size_t i = 0; i < segments.size() && before < end; ++i) {
    const std::size_t count = segments[i].count;
    const std::size_t after = before + slices_of(segments[i]);
    if (after > begin) {
      const std::size_t first = (std::max(begin, before) - before) * kSliceCount;
      const std::size_t last = std::min(count, (std::min(end, after) - before) * kSliceCount);
      if (first < last) visit(SliceAt<Offset>{i, first, last - first, offset, task, last == count});
    }
    before = after;
    offset += segment_bytes(segments[i]);
  }
}

/// Calls `visit` for every slice on the available threads. Segments without values have no slice.
/// `segment_bytes(segment)` is the size of a segment in the payload.
template <typename SegmentBytes, typename Visitor>
void for_each_slice(std::span<const Segment> segments, Threads* threads,
                    const SegmentBytes& segment_bytes, const Visitor& visit) {
  parallel_for(slices_of(segments), threads,
               [&](std::size_t task, std::size_t begin, std::size_t end) {
                 visit_slices(segments, begin, end, task, segment_bytes, visit);
               });
}

/// A task's view of all payloads: on the stack or, for many frames, in the task's part of the
/// workspace.
template <typename View>
class ViewList {
 public:
  /// Returns the workspace bytes for `frames` frames.
  static constexpr std::size_t workspace_bytes(std::size_t frames, unsigned threads) {
    return frames <= kInlineFrames ? 0 : max_tasks(threads) * frames * sizeof(View);
  }

  ViewList(std::size_t frames, ByteSpan workspace, std::size_t task)
      : views_(frames <= kInlineFrames ? inline_views_.data()
                                       : reinterpret_cast<View*>(workspace.data()) + task * frames,
               frames) {}
  ViewList(const ViewList&) = delete;
  ViewList& operator=(const ViewList&) = delete;

  View& operator[](std::size_t frame) { return views_[frame]; }
  std::span<const View> span() const { return views_; }

 private:
  static constexpr std::size_t kInlineFrames = 64;

  std::array<View, kInlineFrames> inline_views_;
  std::span<View> views_;
};

}  // namespace tersor::encoding
