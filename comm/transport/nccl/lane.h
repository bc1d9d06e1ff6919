// What a channel and its splits queue on, so that work on several communicators stays in one order:
// a stream, the bracket of a collective, words of its progress, and memory.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/nccl/block_pool.h"
#include "comm/transport/nccl/fault.h"
#include "kernels/common/device_memory.h"
#include "kernels/common/event.h"
#include "kernels/common/marks.h"

namespace tersor::nccl {

/// Both ends of what a host sends and receives by way of a device.
struct Staging {
  kernels::PinnedBuffer host;
  Buffer device;
  std::uint64_t ticket = 0;  ///< the signal that ends its use
  bool free = false;
};

/// What the watcher remembers between two looks.
struct Sighting {
  std::uint64_t bracket = 0;  ///< under way; 0: none
  Clock::time_point since;
};

/// A bracket that its deadline has passed.
struct LateBracket {
  std::uint32_t name = 0;
  std::chrono::milliseconds timeout{0};
};

/// One thread at a time, but for `observe`.
class Lane {
 public:
  explicit Lane(const Fault& fault);
  /// What the device may still touch where it was stopped is given up, not freed.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  StreamView wire() const { return wire_.view(); }
  BlockPool& pool() { return pool_; }
  FrameFault* frame_fault() const { return frame_fault_; }

  bool in_bracket() const { return depth_ != 0; }
  /// The outermost queues the mark, behind the bracket before.
  void open(const Operation& operation, std::uint32_t name);
  void close(const Operation& operation);
  /// Throws WireError where a kernel reported a frame.
  void check_frames() const;

  /// `later` comes after what is queued on `earlier` so far.
  void order(StreamView earlier, StreamView later) { kernels::order(earlier, later, turn_); }
  /// An event for the end of one operation.
  kernels::Event take_event();
  void give_back(kernels::Event event) { events_.push_back(std::move(event)); }

  Staging& take_staging(std::size_t bytes);
  /// Queues the signal that ends the staging's use.
  void signal(Staging& staging);
  bool is_signalled(const Staging& staging) const;

  /// What is late; called again and again.
  std::optional<LateBracket> observe(Clock::time_point now);
  /// Waits until the last bracket has ended, or the transport has failed.
  void finish() const;

 private:
  bool is_done() const { return !last_stream_.has_value() || last_.done(); }

  const Fault& fault_;
  kernels::PinnedBuffer pinned_;
  kernels::ProgressWords* words_;
  FrameFault* frame_fault_;
  Stream wire_;
  BlockPool pool_;
  std::vector<kernels::Event> events_;
  std::vector<std::unique_ptr<Staging>> stagings_;
  std::uint64_t signals_ = 0;  // queued
  kernels::Event turn_;
  kernels::Event last_;  // stands for the last bracket that was not captured
  std::optional<StreamView> last_stream_;
  unsigned depth_ = 0;
  Sighting sighting_;  // the watcher's
};

}  // namespace tersor::nccl
