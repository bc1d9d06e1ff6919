// The queue of a channel and its splits: a stream, the current bracket (the begin/end pair of a
// collective), progress words, and memory. A common queue keeps work on several communicators in
// order.
#pragma once

#include <tersor/transport.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/nccl/device_blocks.h"
#include "comm/transport/nccl/fault.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/event.h"
#include "kernels/device/marks.h"

namespace tersor::nccl {

/// The pinned host buffer and the device buffer of a host-memory message.
struct StagingBuffers {
  kernels::PinnedBuffer host;
  Buffer device;
  std::uint64_t ticket = 0;  ///< number of the signal that ends the use
  bool free = false;
};

/// The state of the watcher between two checks.
struct Observation {
  std::uint64_t bracket = 0;  ///< number of the bracket under way, or 0
  Clock::time_point since;
};

/// A bracket still under way at the deadline.
struct LateBracket {
  std::uint32_t name = 0;
  std::chrono::milliseconds timeout{0};
};

/// Single-threaded, except for the functions called by the watcher.
class Queue {
 public:
  explicit Queue(const Fault& fault);
  /// After a stop, leaks the memory still accessible to the device instead of freeing it.
  ~Queue();

  StreamView wire() const { return wire_.view(); }
  DeviceBlocks& pool() { return *pool_; }
  FrameFault* frame_fault() const { return frame_fault_; }

  bool in_bracket() const { return depth_ != 0; }
  /// The outermost bracket queues a progress mark, after the previous bracket.
  void open(const Operation& operation, std::uint32_t name);
  void close(const Operation& operation);
  /// The frame fault reported by a kernel.
  std::optional<std::string> find_frame_fault() const;
  /// Like `find_frame_fault`, but only after the end of the faulty frame's bracket, which then ends
  /// on the other ranks, too.
  std::optional<std::string> observe_frame_fault();
  /// Overwrites all received data. Work queued after a stopped exchange then finds invalid frames
  /// instead of frames from an earlier step. Waits for completion, with a limit. Thread-safe.
  void invalidate() noexcept;

  /// Makes later work on `later` wait for the work queued so far on `earlier`.
  void order(StreamView earlier, StreamView later) { kernels::order(earlier, later, order_event_); }
  /// Returns an event for the end of an operation.
  kernels::Event take_event();
  void return_event(kernels::Event event) { events_.push_back(std::move(event)); }

  StagingBuffers& take_staging(std::size_t bytes);
  /// Queues the signal that ends the use of the relay.
  void signal(StagingBuffers& staging);
  bool is_signalled(const StagingBuffers& staging) const;

  /// Returns the late bracket, if any. Called periodically.
  std::optional<LateBracket> observe(Clock::time_point now);
  /// Waits until all brackets on the device have ended, including replays of graphs, or the
  /// transport has failed. The watcher fails the transport if a bracket is late.
  void finish() const;

 private:
  bool is_done() const;

  const Fault& fault_;
  kernels::PinnedBuffer pinned_;
  kernels::ProgressWords* words_;
  kernels::ProgressWords* invalidated_;  // used for signals only
  FrameFault* frame_fault_;
  Stream wire_;
  std::unique_ptr<DeviceBlocks> pool_ = std::make_unique<DeviceBlocks>();
  std::vector<kernels::Event> events_;
  std::vector<std::unique_ptr<StagingBuffers>> staging_buffers_;
  std::uint64_t signals_ = 0;  // number of queued signals
  kernels::Event order_event_;
  kernels::Event last_;  // recorded after the last bracket outside of captures
  bool has_ended_ = false;
  unsigned depth_ = 0;
  Stream invalidation_stream_;
  Observation observation_;  // used by the watcher
  // Number of ended brackets when the watcher first saw the fault.
  std::optional<std::uint64_t> ended_at_fault_;
};

}  // namespace tersor::nccl
