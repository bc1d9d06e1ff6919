// Threads and scratch memory, reused by a codec's calls. A training loop allocates only in the
// first call.
#pragma once

#include "kernels/device/device.h"
#include "kernels/device/event.h"

#include <tersor/buffer.h>
#include <tersor/codec.h>
#include <tersor/error.h>
#include <tersor/stream.h>
#include <tersor/threads.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

namespace tersor::python {

/// The memory, device and stream of a call. Calls on the same device stream share scratch memory,
/// because the stream serialises the calls.
struct Location {
  Memory memory = Memory::kHost;
  int device = 0;
  StreamView stream = {};
};

/// The scratch memory and threads of a call.
class Scratch {
 public:
  explicit Scratch(unsigned threads) : threads_(threads) {}

  /// Returns an execution with memory for a plan of these sizes.
  Execution execution(const PlanSizes& sizes, const Location& location) {
    return {.threads = &threads_,
            .stream = location.stream,
            .workspace = space_in(workspace_, sizes.workspace_bytes, location.memory),
            .round_state = space_in(round_state_, sizes.round_state_bytes, location.memory),
            .memory = location.memory};
  }
  unsigned threads() const { return threads_.count(); }

  /// Call before and after the work of a call. Equal handles may name two streams: the first was
  /// destroyed, or the handle names a stream of each thread. The second stream then waits. A
  /// captured stream keeps its handle and cannot wait.
  void begin(const Location& location) const {
    if (used_ && kernels::capture_of(location.stream) == 0) used_->hold(location.stream);
  }
  void end(const Location& location) {
    if (location.memory == Memory::kHost || kernels::capture_of(location.stream) != 0) return;
    if (!used_) used_.emplace();
    used_->record(location.stream);
  }

 private:
  static ByteSpan space_in(Buffer& buffer, std::size_t bytes, Memory memory) {
    if (buffer.bytes() < bytes) buffer = Buffer(bytes, memory);
    return buffer.span();
  }

  Threads threads_;
  Buffer workspace_, round_state_;
  std::optional<kernels::Event> used_;  ///< after the last call on a device
};

/// The scratches of a codec, as many as concurrent calls. Thread-safe.
class ScratchPool {
 public:
  explicit ScratchPool(unsigned threads) : threads_(threads) {}

  /// A borrowed scratch. The destructor returns the scratch to the pool.
  class Loan {
   public:
    Loan(ScratchPool& pool, const Location& location)
        : pool_(pool), location_(location), scratch_(pool.take(location)) {
      scratch_->begin(location);
    }
    ~Loan() {
      try {
        scratch_->end(location_);
        pool_.give_back(location_, std::move(scratch_));
      } catch (const Error&) {  // ignored: freeing the memory waits for queued work
      }
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    Scratch* operator->() const { return scratch_.get(); }

   private:
    ScratchPool& pool_;
    Location location_;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  using Key = std::tuple<Memory, int, void*>;

  std::unique_ptr<Scratch> take(const Location& location) {
    const std::lock_guard lock(mutex_);
    const auto found = idle_.find({location.memory, location.device, location.stream.handle});
    if (found == idle_.end()) return std::make_unique<Scratch>(threads_);
    return std::move(idle_.extract(found).mapped());
  }
  void give_back(const Location& location, std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    idle_.emplace(Key{location.memory, location.device, location.stream.handle},
                  std::move(scratch));
  }

  unsigned threads_;
  std::mutex mutex_;
  std::multimap<Key, std::unique_ptr<Scratch>> idle_;
};

}  // namespace tersor::python
