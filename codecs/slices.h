// How a call's segments are spread over threads: cut into slices, contiguous runs of which are the
// tasks. Slices begin at multiples of 65,536 values, so every block and every counter of random
// numbers lies in one of them, and the bytes do not depend on the threads.
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

/// Values of one slice: enough that handing it to a thread costs nothing beside coding it.
inline constexpr std::size_t kSliceCount = std::size_t{1} << 16;
/// Tasks a thread, so that one that comes late does not keep the others waiting.
inline constexpr std::size_t kTasksPerThread = 4;

/// Values [first, first + count) of a segment, for one task. `Offset` adds up what segments take:
/// bytes of one payload, or a struct where each lies in several places.
template <typename Offset>
struct SliceAt {
  std::size_t segment = 0;
  std::size_t first = 0;
  std::size_t count = 0;
  Offset offset = {};  ///< what the segments before take
  std::size_t task = 0;
  bool is_last = true;  ///< of its segment: who has it pads the sections
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

/// The most tasks that a call on `threads` threads is cut into.
constexpr std::size_t most_tasks(unsigned threads) {
  return threads > 1 ? threads * kTasksPerThread : 1;
}

/// Calls work(task, begin, end) for tasks that have contiguous parts of `count` things, on the
/// threads that there are.
template <typename Work>
void share(std::size_t count, Threads* threads, const Work& work) {
  const std::size_t tasks = std::min(count, most_tasks(threads == nullptr ? 1 : threads->count()));
  const auto run_task = [&](std::size_t task) {
    work(task, task * count / tasks, (task + 1) * count / tasks);
  };
  if (tasks > 1) return threads->run(tasks, run_task);
  if (tasks == 1) run_task(0);
}

/// Visits slices [begin, end) in order, those of one segment that follow each other as one.
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

/// Calls `visit` for every slice, on the threads that there are; segments without values have none.
/// `segment_bytes(segment)` is what a segment takes in the payload.
template <typename SegmentBytes, typename Visitor>
void for_each_slice(std::span<const Segment> segments, Threads* threads,
                    const SegmentBytes& segment_bytes, const Visitor& visit) {
  share(slices_of(segments), threads, [&](std::size_t task, std::size_t begin, std::size_t end) {
    visit_slices(segments, begin, end, task, segment_bytes, visit);
  });
}

/// The payloads of all frames, as one task sees them: on its stack, or where they are many, in its
/// part of the workspace.
template <typename View>
class ViewList {
 public:
  /// Bytes of workspace for `frames` frames.
  static constexpr std::size_t workspace_bytes(std::size_t frames, unsigned threads) {
    return frames <= kOnStack ? 0 : most_tasks(threads) * frames * sizeof(View);
  }

  ViewList(std::size_t frames, ByteSpan workspace, std::size_t task)
      : views_(frames <= kOnStack ? few_.data()
                                  : reinterpret_cast<View*>(workspace.data()) + task * frames,
               frames) {}
  ViewList(const ViewList&) = delete;
  ViewList& operator=(const ViewList&) = delete;

  View& operator[](std::size_t frame) { return views_[frame]; }
  std::span<const View> span() const { return views_; }

 private:
  static constexpr std::size_t kOnStack = 64;

  std::array<View, kOnStack> few_;
  std::span<View> views_;
};

}  // namespace tersor::encoding
