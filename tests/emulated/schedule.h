// What emulated streams, events and captures know of each other. All of it is guarded by
// `lock_device`.
#pragma once

#include "tests/emulated/streams.h"

#include <deque>
#include <memory>
#include <thread>

namespace tersor::emulator {

/// What an event stands for: a point in the order of a stream's work.
struct Milestone {
  std::string stream;  // whose it is
  bool reached = false;
  std::uint64_t capture = 0;  // recorded in this one; 0: in none
};
using MilestonePointer = std::shared_ptr<Milestone>;

struct EventState {
  int device;
  MilestonePointer last;  // null: never recorded
};

/// One thing on a stream. Everything but `what` may be missing.
struct Work {
  std::string what;
  std::function<bool()> ready = {};
  std::function<void()> run = {};
  MilestonePointer waits_for = {}, reaches = {};
};

struct StreamState {
  std::string name;
  int device = 0;
  std::thread::id thread = std::this_thread::get_id();  // that made it
  std::deque<Work> works = {};
  std::uint64_t queued = 0, done = 0;
  std::uint64_t capture = 0;  // that it is part of
  bool is_owned = true;       // false: vanishes when all is done
};

/// Work of a stream since it became part of a capture.
struct Lane {
  StreamState* stream;
  std::deque<Work> works;
};

struct Capture {
  std::uint64_t number;
  std::thread::id thread;
  std::vector<Lane> lanes = {};  // that of the stream where it began comes first
  std::string broken = {};       // why; empty: it is not
};

struct GraphLanes {
  std::vector<std::deque<Work>> lanes;
  MilestonePointer last_end;  // of the last replay
};

/// A new stream; without a name it gets a number.
StreamState& add_stream(std::string name, int device);
/// It is gone once all is done that was queued.
void release_stream(StreamState& stream);
/// Throws EmulatorError where the handle is not a stream's.
StreamState& state_of(StreamView view);

/// Queues work, or lets the capture keep it that the stream is part of.
void queue_work(StreamState& stream, Work work);
/// The null stream's runs at once.
void queue_work(StreamView view, Work work);

/// Runs anyone's work until finished(), under the terms of `synchronize`. The guard is the only one
/// of this thread.
void run_until(Guard& guard, const std::function<bool()>& finished);
/// As a device that is waited for whole: until nothing is queued on the streams that the calling
/// thread made. Gives up where `synchronize` would throw.
void drain(Guard& guard) noexcept;

/// The point behind all that is queued so far.
MilestonePointer record(StreamView view);
/// Throws CudaError where the event is another device's than the stream.
void record(StreamView view, EventState& event);
/// Null: of an event that was never recorded. A milestone of a capture makes the stream part of it.
void hold(StreamView view, const MilestonePointer& milestone);
/// Lets some work run, so that who asks again and again comes to an end.
bool is_done(const EventState& event);

/// Null: part of none.
Capture* capture_of(const StreamState& stream);
Capture* find_capture(std::uint64_t number);
Lane& lane_of(Capture& capture, const StreamState& stream);
/// Breaks the captures of this thread; false where there are none.
bool break_captures(const std::string& why);
/// Throws CudaError where there were any.
void forbid_in_capture(const std::string& call);
void drop_captures();

/// Adds one for this thread and for all.
void count(std::uint64_t Counters::*counter);

}  // namespace tersor::emulator
