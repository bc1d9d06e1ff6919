// Captures of emulated streams and their replays; see streams.h.

#include "tests/emulated/schedule.h"

#include <tersor/error.h>

#include <algorithm>
#include <map>

namespace tersor::emulator {
namespace {

std::vector<std::unique_ptr<Capture>>& captures() {
  static std::vector<std::unique_ptr<Capture>> all;
  return all;
}

void join(Capture& capture, StreamState& stream) {
  stream.capture = capture.number;
  capture.lanes.push_back({&stream, {}});
}

/// Ends the capture for all streams.
Capture take(Capture& capture) {
  for (const Lane& lane : capture.lanes) lane.stream->capture = 0;
  Capture taken = std::move(capture);
  std::erase_if(captures(), [&](const auto& other) { return other.get() == &capture; });
  return taken;
}

/// The number of works preceding the end of the first stream, for each stream of the capture.
class Reach {
 public:
  explicit Reach(const Capture& capture) : lanes_(capture.lanes), reached_(lanes_.size()) {
    extend(0, lanes_.front().works.size());
  }

  /// A record without a waiter is not counted as work.
  bool is_all(std::size_t lane) const {
    const auto& works = lanes_[lane].works;
    return std::all_of(works.begin() + static_cast<std::ptrdiff_t>(reached_[lane]), works.end(),
                       [](const Work& work) { return work.reaches != nullptr; });
  }

 private:
  void extend(std::size_t lane, std::size_t works) {
    for (std::size_t& i = reached_[lane]; i < works;) {
      const MilestonePointer& earlier = lanes_[lane].works[i++].waits_for;
      if (earlier != nullptr) extend_to(earlier);
    }
  }

  void extend_to(const MilestonePointer& milestone) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
      for (std::size_t i = 0; i < lanes_[lane].works.size(); ++i)
        if (lanes_[lane].works[i].reaches == milestone) return extend(lane, i + 1);
  }

  const std::vector<Lane>& lanes_;
  std::vector<std::size_t> reached_;
};

void check_whole(const Capture& capture) {
  if (!capture.broken.empty()) throw CudaError("a capture was broken: " + capture.broken);
  const Reach reach(capture);
  for (std::size_t lane = 0; lane < capture.lanes.size(); ++lane)
    if (!reach.is_all(lane))
      throw CudaError("a capture ends before " + capture.lanes[lane].stream->name +
                      " was joined to " + capture.lanes.front().stream->name + " again");
}

/// The milestones of a replay, corresponding to the milestones of the graph.
class FreshMilestones {
 public:
  MilestonePointer of(const MilestonePointer& captured) {
    if (captured == nullptr) return nullptr;
    MilestonePointer& fresh = fresh_[captured];
    if (fresh == nullptr) fresh = std::make_shared<Milestone>(Milestone{captured->stream});
    return fresh;
  }

 private:
  std::map<MilestonePointer, MilestonePointer> fresh_;
};

/// Queues the work of one captured stream on a separate stream, after `start`. Returns the end.
MilestonePointer replay_lane(StreamState& lane, const std::deque<Work>& works,
                             const MilestonePointer& start, FreshMilestones& milestones) {
  queue_work(lane, {.what = "hold for the start of a graph", .waits_for = start});
  for (Work work : works) {
    work.waits_for = milestones.of(work.waits_for);
    work.reaches = milestones.of(work.reaches);
    queue_work(lane, std::move(work));
  }
  const auto end = std::make_shared<Milestone>(Milestone{lane.name});
  queue_work(lane, {.what = "end of a graph", .reaches = end});
  release_stream(lane);
  return end;
}

}  // namespace

Capture* find_capture(std::uint64_t number) {
  for (const auto& capture : captures())
    if (capture->number == number) return capture.get();
  return nullptr;
}

Capture* capture_of(const StreamState& stream) { return find_capture(stream.capture); }

Lane& lane_of(Capture& capture, const StreamState& stream) {
  return *std::ranges::find(capture.lanes, &stream, &Lane::stream);
}

bool break_captures(const std::string& why) {
  bool found = false;
  for (const auto& capture : captures()) {
    if (capture->thread != std::this_thread::get_id()) continue;
    found = true;
    capture->broken = why;
  }
  return found;
}

void forbid_in_capture(const std::string& call) {
  if (break_captures(call)) throw CudaError(call + " while this thread captures a stream");
}

void drop_captures() {
  while (!captures().empty()) take(*captures().back());
}

void hold(StreamView view, const MilestonePointer& milestone) {
  const Guard guard = lock_device();
  Capture* own = view.handle == nullptr ? nullptr : capture_of(state_of(view));
  Capture* other = milestone == nullptr ? nullptr : find_capture(milestone->capture);
  if (milestone != nullptr && milestone->capture != 0 && (other == nullptr || !view.handle))
    throw CudaError("a stream is held for an event that a capture recorded");
  if (own != nullptr && own != other) {
    own->broken = "a stream of it is held for an event from outside";
    throw CudaError("a stream that is captured is held for an event from outside the capture");
  }
  if (milestone == nullptr) return;
  if (own == nullptr && other != nullptr) join(*other, state_of(view));
  queue_work(view, {.what = "hold for an event", .waits_for = milestone});
}

std::uint64_t begin_capture(StreamView view) {
  static std::uint64_t number = 0;
  const Guard guard = lock_device();
  if (view.handle == nullptr) throw CudaError("the default stream cannot be captured");
  StreamState& stream = state_of(view);
  if (stream.capture != 0) throw CudaError("a stream is captured twice at a time");
  auto capture = std::make_unique<Capture>(++number, std::this_thread::get_id());
  join(*captures().emplace_back(std::move(capture)), stream);
  return number;
}

Graph end_capture(StreamView view) {
  const Guard guard = lock_device();
  StreamState& stream = state_of(view);
  Capture* capture = capture_of(stream);
  if (capture == nullptr) throw CudaError("a capture ends that did not begin");
  if (capture->thread != std::this_thread::get_id() || capture->lanes.front().stream != &stream)
    throw CudaError("a capture ends on another thread or stream than where it began");
  Capture whole = take(*capture);
  check_whole(whole);
  auto lanes = std::make_shared<GraphLanes>();
  for (Lane& lane : whole.lanes) lanes->lanes.push_back(std::move(lane.works));
  return Graph(std::move(lanes));
}

void replay(const Graph& graph, StreamView view) {
  const Guard guard = lock_device();
  StreamState& stream = state_of(view);
  if (stream.capture != 0) throw EmulatorError("a graph inside of a graph is not emulated");
  count(&Counters::launches);
  const auto start = std::make_shared<Milestone>(Milestone{stream.name});
  queue_work(stream,
             {.what = "start of a graph", .waits_for = graph.lanes().last_end, .reaches = start});
  FreshMilestones milestones;
  std::vector<MilestonePointer> ends;
  for (const auto& works : graph.lanes().lanes) {
    const std::string name =
        "lane " + std::to_string(ends.size()) + " of a graph on " + stream.name;
    ends.push_back(replay_lane(add_stream(name, stream.device), works, start, milestones));
  }
  for (const MilestonePointer& end : ends)
    queue_work(stream, {.what = "hold for the end of a graph", .waits_for = end});
  graph.lanes().last_end = record(view);
}

}  // namespace tersor::emulator
