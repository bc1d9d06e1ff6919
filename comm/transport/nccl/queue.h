// What a channel and its splits queue on, so that work on several communicators stays in one order:
// a stream, the bracket of a collective, words of its progress, and memory.
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

/// Both ends of what a host sends and receives by way of a device.
struct Relay {
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

/// A bracket that was still under way at its deadline.
struct LateBracket {
  std::uint32_t name = 0;
  std::chrono::milliseconds timeout{0};
};

/// One thread at a time, but for what the watcher calls.
class Queue {
 public:
  explicit Queue(const Fault& fault);
  /// What the device may still touch where it was stopped is given up, not freed.
  ~Queue();

  StreamView wire() const { return wire_.view(); }
  DeviceBlocks& pool() { return *pool_; }
  FrameFault* frame_fault() const { return frame_fault_; }

  bool in_bracket() const { return depth_ != 0; }
  /// The outermost queues the mark, behind the bracket before.
  void open(const Operation& operation, std::uint32_t name);
  void close(const Operation& operation);
  /// What a kernel reported of a frame.
  std::optional<std::string> find_damage() const;
  /// The same, once the bracket that it is of has ended: it ends for the other ranks too.
  std::optional<std::string> observe_damage();
  /// Overwrites what was received, so that what is queued behind an exchange that will be stopped
  /// finds no frame, but not that of an earlier step. Waits for that, within limits. Any thread.
  void spoil() noexcept;

  /// `later` comes after what is queued on `earlier` so far.
  void order(StreamView earlier, StreamView later) { kernels::order(earlier, later, turn_); }
  /// An event for the end of one operation.
  kernels::Event take_event();
  void give_back(kernels::Event event) { events_.push_back(std::move(event)); }

  Relay& take_relay(std::size_t bytes);
  /// Queues the signal that ends the relay's use.
  void signal(Relay& relay);
  bool is_signalled(const Relay& relay) const;

  /// What is late; called again and again.
  std::optional<LateBracket> observe(Clock::time_point now);
  /// Waits until the last bracket has ended, or the transport has failed.
  void finish() const;

 private:
  bool is_done() const { return !has_ended_ || last_.done(); }

  const Fault& fault_;
  kernels::PinnedBuffer pinned_;
  kernels::ProgressWords* words_;
  kernels::ProgressWords* spoiled_;  // signals alone
  FrameFault* frame_fault_;
  Stream wire_;
  std::unique_ptr<DeviceBlocks> pool_ = std::make_unique<DeviceBlocks>();
  std::vector<kernels::Event> events_;
  std::vector<std::unique_ptr<Relay>> relays_;
  std::uint64_t signals_ = 0;  // queued
  kernels::Event turn_;
  kernels::Event last_;  // stands for the last bracket that was not captured
  bool has_ended_ = false;
  unsigned depth_ = 0;
  Stream spoiling_;
  Sighting sighting_;                    // the watcher's
  std::optional<std::uint64_t> damage_;  // too: brackets that had ended when it was seen
};

}  // namespace tersor::nccl
