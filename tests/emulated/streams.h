// Emulated streams. Queued work runs later: after the earlier work of its stream, and after the
// events its stream waits for. A seed chooses at random among all streams with runnable work. A
// missing event therefore shows as wrong bytes or as an EmulatorError with some seed. Work runs
// while a thread waits, while a thread queries an event, and sometimes while a thread queues work,
// as on a device running ahead of or behind the host.
//
// Ranks are threads of one process. A single lock guards the device. Work runs with the lock held
// and must not block. The null stream is immediate: its work runs in the queueing call.
//
// Parallel work of a device runs sequentially here, with whole copies at a time.
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

/// Queues work to run once or, in a capture, once per replay. `what` describes the work in
/// messages.
void enqueue(StreamView stream, std::string what, std::function<void()> work);

/// Queues work to run after ready() returns true. ready() is called any number of times and must
/// have no side effects. Used by ranks waiting for each other. `ready` may read data written by
/// other work or by host threads with the lock held.
void enqueue_when(StreamView stream, std::string what, std::function<bool()> ready,
                  std::function<void()> work);

/// Queues work counted as a launch: a kernel, a copy or a memset.
void launch(StreamView stream, std::string what, std::function<void()> work);

/// Runs work of all streams until all work queued on this stream before the call is done. Other
/// threads may queue work meanwhile. Throws CudaError while a capture forbids waits. Throws
/// EmulatorError
///   - after work has failed: names the work, on every thread until `restart`; queued work is
///   dropped
///   - if no work could run and no work was queued during `patience`: lists the blocked work
void synchronize(StreamView stream);

/// True if all queued work is done. Runs nothing.
bool is_drained(StreamView stream);

/// Runs one piece of work. Returns false if no work can run.
bool run_one();

/// Sets a name for messages and records, instead of the stream's number.
void name_stream(StreamView stream, std::string name);

/// Drops all queued work, captures and failures. Later work runs in the order of this seed.
void restart(std::uint64_t seed);
/// The first seed: TERSOR_STREAM_SEED from the environment, or 1.
std::uint64_t seed();
/// The default is 10 seconds.
void set_patience(std::chrono::milliseconds patience);

/// The lock of the device, for state shared between work and the threads of a test. A thread may
/// hold the lock during all calls without waits. Queueing may then run other work.
using Guard = std::unique_lock<std::recursive_mutex>;
[[nodiscard]] Guard lock_device();

/// Test access: the current contents of device memory, regardless of queued work.
std::vector<std::byte> bytes_of(const void* memory, std::size_t bytes);

/// Counters of a host thread since its start.
struct Counters {
  std::uint64_t allocations = 0;  ///< of device memory and of pinned memory
  std::uint64_t host_waits = 0;   ///< synchronizing, freeing device memory
  std::uint64_t launches = 0;     ///< kernels, copies, memsets, replays (as a whole)
};
Counters& counters();     ///< of the calling thread
Counters all_counters();  ///< of all threads, including ended threads

/// Records the work queued during its lifetime in the host's order: "NAME OF THE STREAM: WHAT".
/// Only one record at a time.
class Record {
 public:
  Record();
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
  std::vector<std::string> lines() const;
};

/// Starts a capture on the stream. Work queued on the stream is kept instead of run, also on every
/// stream waiting for an event of the capture. During the capture, the calling thread must not
/// wait, query events, allocate or free, as in cudaStreamCaptureModeGlobal. Violations throw
/// CudaError and break the capture. Returns the capture's number.
std::uint64_t begin_capture(StreamView stream);

struct GraphLanes;
/// The work of a capture. Replays of the same graph run one after the other.
class Graph {
 public:
  explicit Graph(std::shared_ptr<GraphLanes> lanes) : lanes_(std::move(lanes)) {}
  GraphLanes& lanes() const { return *lanes_; }

 private:
  std::shared_ptr<GraphLanes> lanes_;
};

/// Throws CudaError if the capture is broken, if the capture began on another stream or thread, or
/// if a joined stream has work not awaited by the first stream.
Graph end_capture(StreamView stream);

/// Queues all work of the graph again, in stream order. The work of each captured stream keeps its
/// order. Only events order work between captured streams.
void replay(const Graph& graph, StreamView stream);

}  // namespace tersor::emulator
