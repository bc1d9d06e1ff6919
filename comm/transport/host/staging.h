// Device memory over host networks: payloads are copied into pinned memory, sent as host memory,
// and copied to the device at the receiver.
//
// Copies run on two streams of the channel, one per direction. Events order them with the
// operation's stream. Copies therefore overlap with each other and with later work of the caller,
// for example encoding the next chunk. Four chunks under way keep the network and both directions
// busy, so no message is split for overlap. With `in_order`, copies run on the operation's own
// stream.
//
// The host polls an event to detect the end of a device-to-host copy, then sends. The host never
// waits for host-to-device copies: the operation's stream does. Memory in use by queued work is
// kept until the work is done (`retire`) and then reused.
#pragma once

#include <tersor/stream.h>
#include <tersor/transport.h>
#include <tersor/wire.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/transport/host/ring.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/event.h"

namespace tersor::host {

/// The state shared by the device operations of a channel. Not thread-safe.
class Staging {
 public:
  /// Uses the current device. Throws CudaError or OutOfMemoryError.
  explicit Staging(std::shared_ptr<Channel> channel);

  /// Throws if a device operation must be refused: no device, a device other than this channel's,
  /// or a stream under capture or of another device.
  void check(const Operation& operation) const;
  /// Throws InvalidArgumentError unless the bytes to send lie on the device.
  static void check(const Operation& operation, ConstByteSpan bytes);

  /// The pool for network payloads of `bytes` bytes: pinned memory, or device memory if the network
  /// can access device memory.
  BlockPool& network_pool(std::size_t bytes) const;
  BlockPool& pinned() const { return pinned_; }
  BlockPool& device() const { return device_; }
  FrameFault* fault() const { return reinterpret_cast<FrameFault*>(fault_.pointer()); }

  /// Waits until queued work needs no memory any more. Returns false if work remains at `until`.
  bool drain(Clock::time_point until);

 private:
  friend class Copies;
  struct Events {
    kernels::Event ready, to_host, to_device;
  };
  /// Memory in use by queued work until an event completes.
  struct Retired {
    std::unique_ptr<Events> events;
    const kernels::Event* last;
    std::vector<Block> blocks;
  };

  std::unique_ptr<Events> take_events();
  void reclaim();

  std::shared_ptr<Channel> channel_;  // keeps the engine's pools alive
  int device_number_;                 // device number
  BlockPool& pinned_;
  BlockPool& device_;
  Stream to_host_, to_device_;
  kernels::PinnedBuffer fault_;
  std::vector<std::unique_ptr<Events>> free_events_;
  std::vector<Retired> retired_;
  std::vector<Block> leaked_;  // blocks without a recorded event
};

/// The copies of one operation.
class Copies {
 public:
  Copies(Staging& staging, const Operation& operation);
  /// Keeps all memory in use by queued work.
  ~Copies();

  Staging& staging() const { return staging_; }

  /// Returns the stream for device-to-host copies. The copies run after the work queued on the
  /// operation's stream.
  StreamView begin_to_host();
  void end_to_host();
  /// True if device-to-host copies are queued and not known to be done.
  bool copying_to_host() const { return state_ == State::kToHost; }
  /// Returns true when the device-to-host copies are done. Not called again after returning true.
  bool to_host_done();

  /// Returns the stream for host-to-device copies. Later work on the operation's stream runs after
  /// the copies.
  StreamView begin_to_device();
  void end_to_device();

  /// Keeps a block until the copies are done.
  void retain(Block block) { blocks_.push_back(std::move(block)); }
  /// Keeps a block until the caller's work is done. The relevant work is queued on the operation's
  /// stream before the handle is destroyed.
  void retain_for_caller(Block block);

 private:
  enum class State { kIdle, kQueueingToHost, kToHost, kQueueingToDevice, kToDevice, kReadByCaller };
  StreamView to_host() const { return in_order_ ? stream_ : staging_.to_host_.view(); }
  StreamView to_device() const { return in_order_ ? stream_ : staging_.to_device_.view(); }
  const kernels::Event& last_event();

  Staging& staging_;
  StreamView stream_;
  bool in_order_;
  State state_ = State::kIdle;
  std::unique_ptr<Staging::Events> events_;
  std::vector<Block> blocks_;
};

/// Like HostExchange for payloads on a device. Without payloads, a barrier for the queued work of
/// the streams. The second function is like make_reduction for parts on a device.
std::unique_ptr<HostExchange> make_staged_exchange(Staging& staging, const Start& start,
                                                   std::size_t receives);
std::unique_ptr<HostTransfer> make_staged_reduction(Staging& staging, const Start& start,
                                                    RingWork work);

/// Runs `work`. A device error raises a fault on all ranks.
template <typename Work>
auto on_device(const HostTransfer& transfer, Work&& work) try {
  return work();
} catch (const CudaError& error) {
  transfer.raise(error.what());
  throw;
} catch (const OutOfMemoryError& error) {
  transfer.raise(error.what());
  throw;
}

}  // namespace tersor::host
