// Emulated streams: what is queued on one runs later, after what was queued there before and after
// the events that it was held for; among all streams whose next work may run, a seed chooses at
// random which one does. So an event that is missing shows as wrong bytes or as an EmulatorError
// under some seed. Work runs while a thread waits, while it asks for an event, and now and then
// while it queues, as on a device that is sometimes ahead of the host and sometimes behind.
//
// Ranks are threads of one process. One lock guards the device, and work runs under it: it must not
// block. The null stream stays immediate: its work runs in the call that queues it.
//
// What a device does in parallel runs here piece by piece, whole copies at a time.
#pragma once

#include <tersor/stream.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tersor::emulator {

class EmulatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Queues work that runs once; in a capture: once for each replay. `what` stands in messages.
void enqueue(StreamView stream, std::string what, std::function<void()> work);

/// Not before ready(), which is asked as often as it takes and changes nothing: for ranks that
/// wait for each other. May read what other work or the host's threads write under the lock.
void enqueue_when(StreamView stream, std::string what, std::function<bool()> ready,
                  std::function<void()> work);

/// Queues what counts as a launch: a kernel, a copy, zeros.
void launch(StreamView stream, std::string what, std::function<void()> work);

/// Runs anyone's work until all is done that was queued on the stream before the call. Other
/// threads may queue meanwhile. Throws CudaError while a capture forbids it, and EmulatorError
///   - where work has failed: names it, on every thread until `restart`; what was queued is dropped
///   - where for `patience` nothing could run and nothing was queued: lists what is stuck
void synchronize(StreamView stream);

/// Whether all is done that was queued. Runs nothing.
bool is_drained(StreamView stream);

/// Runs one piece of work; false where none can run.
bool run_one();

/// In messages and in the record, instead of its number.
void name_stream(StreamView stream, std::string name);

/// Drops all queued work, captures and failures, and orders what comes by this seed.
void restart(std::uint64_t seed);
/// The first is TERSOR_STREAM_SEED of the environment, or 1.
std::uint64_t seed();
/// 10 seconds at first.
void set_patience(std::chrono::milliseconds patience);

/// The lock of the device, for state that work shares with the threads of a test. May be held while
/// calling anything here that does not wait; queueing may then run other work.
using Guard = std::unique_lock<std::recursive_mutex>;
[[nodiscard]] Guard lock_device();

/// For tests: what lies in device memory now, whatever is queued.
std::vector<std::byte> bytes_of(const void* memory, std::size_t bytes);

/// What a host thread asked for, since it began.
struct Counters {
  std::uint64_t allocations = 0;  ///< of device memory and of pinned memory
  std::uint64_t host_waits = 0;   ///< synchronising, freeing device memory
  std::uint64_t launches = 0;  ///< kernels, copies, zeros and replays; what replays launch is not
};
Counters& counters();     ///< of the calling thread
Counters all_counters();  ///< of all threads there were

/// Keeps what is queued while it lives, in the host's order: "NAME OF THE STREAM: WHAT". One at a
/// time.
class Record {
 public:
  Record();
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
  std::vector<std::string> lines() const;
};

/// Makes the stream part of a new capture: what is queued is kept instead of run, and so on every
/// stream that is held for an event of the capture. While it lasts the calling thread must neither
/// wait, ask for events, nor allocate or free, as in cudaStreamCaptureModeGlobal: that throws
/// CudaError, and breaks the capture. Returns the capture's number.
std::uint64_t begin_capture(StreamView stream);

struct GraphLanes;
/// What a capture kept. Replays of one graph run one after the other.
class Graph {
 public:
  explicit Graph(std::shared_ptr<GraphLanes> lanes) : lanes_(std::move(lanes)) {}
  GraphLanes& lanes() const { return *lanes_; }

 private:
  std::shared_ptr<GraphLanes> lanes_;
};

/// Throws CudaError where the capture was broken, began on another stream or thread, or where a
/// stream that joined it holds work that its first stream does not wait for.
Graph end_capture(StreamView stream);

/// Queues all of it again: after what is queued on the stream, and before what comes. What one
/// captured stream held keeps its order; between them only their events order anything.
void replay(const Graph& graph, StreamView stream);

}  // namespace tersor::emulator
