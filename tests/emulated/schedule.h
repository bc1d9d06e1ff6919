// Shared state of emulated streams, events and captures. Guarded by `lock_device`.
#pragma once

#include "tests/emulated/streams.h"

#include <deque>
#include <memory>
#include <thread>

namespace tersor::emulator {

/// The point of an event in the work of a stream.
struct Milestone {
  std::string stream;  // name of the recording stream
  bool reached = false;
  std::uint64_t capture = 0;  // number of the capture of the record; 0: none
};
using MilestonePointer = std::shared_ptr<Milestone>;

struct EventState {
  int device;
  MilestonePointer last;  // null: never recorded
};

/// A work item of a stream. All members except `what` are optional.
struct Work {
  std::string what;
  std::function<bool()> ready = {};
  std::function<void()> run = {};
  MilestonePointer waits_for = {}, reaches = {};
};

struct StreamState {
  std::string name;
  int device = 0;
  std::thread::id thread = std::this_thread::get_id();  // the thread that created the stream
  std::deque<Work> works = {};
  std::uint64_t queued = 0, done = 0;
  std::uint64_t capture = 0;  // number of its capture; 0: none
  bool is_owned = true;       // False if the stream disappears after its work is done
};

/// The work of a stream since it joined a capture.
struct Lane {
  StreamState* stream;
  std::deque<Work> works;
};

struct Capture {
  std::uint64_t number;
  std::thread::id thread;
  std::vector<Lane> lanes = {};  // the origin stream comes first
  std::string broken = {};       // the reason; empty: not broken
};

struct GraphLanes {
  std::vector<std::deque<Work>> lanes;
  MilestonePointer last_end;  // of the last replay
};

/// Creates a stream. Without a name, the stream gets a number.
StreamState& add_stream(std::string name, int device);
/// The stream disappears after all its queued work is done.
void release_stream(StreamState& stream);
/// Throws EmulatorError if the handle is invalid.
StreamState& state_of(StreamView view);

/// Queues work, or adds the work to the stream's capture.
void queue_work(StreamState& stream, Work work);
/// Work on the null stream runs at once.
void queue_work(StreamView view, Work work);

/// Runs work of all streams until finished(), with the errors of `synchronize`. The guard must be
/// the thread's only guard.
void run_until(Guard& guard, const std::function<bool()>& finished);
/// Waits like a device-wide synchronization, until the streams made by the calling thread have no
/// queued work. Gives up if `synchronize` would throw.
void drain(Guard& guard) noexcept;

/// The point after all work queued so far.
MilestonePointer record(StreamView view);
/// Throws CudaError if the event and the stream belong to different devices.
void record(StreamView view, EventState& event);
/// Null stands for an unrecorded event. A milestone of a capture makes the stream join the capture.
void hold(StreamView view, const MilestonePointer& milestone);
/// Runs some work, so repeated queries eventually return true.
bool is_done(const EventState& event);

/// Returns null if the stream is not captured.
Capture* capture_of(const StreamState& stream);
Capture* find_capture(std::uint64_t number);
Lane& lane_of(Capture& capture, const StreamState& stream);
/// Breaks the captures of this thread. Returns false without captures.
bool break_captures(const std::string& why);
/// Throws CudaError if this thread has a capture.
void forbid_in_capture(const std::string& call);
void drop_captures();

/// Increments the counters of this thread and of all threads.
void count(std::uint64_t Counters::*counter);

}  // namespace tersor::emulator
