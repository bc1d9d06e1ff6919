// Device memory between hosts: what is sent is copied down into pinned memory, goes over the
// network as any host memory does, and is copied up again where it arrives.
//
// Copies run on two streams of the channel, one a direction, ordered with the operation's stream by
// events. So they overlap with what the caller queues behind them (it encodes the next chunk) and
// with each other; four chunks that are under way keep wire and both directions busy, and no
// message needs to be cut for that. Where an operation says `in_order` they stand on its own
// stream.
//
// The host learns by asking an event that a copy down is done, and sends then. Nobody waits for
// copies up: the operation's stream does. Memory that queued work still reads or writes is kept
// until that is done (`retire`), and only then used again.
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

/// What the device operations of one channel share. One thread at a time, as the channel.
class Staging {
 public:
  /// Of the current device. Throws CudaError, OutOfMemory.
  explicit Staging(std::shared_ptr<Channel> channel);

  /// Throws what a device operation must be refused for: no device, another device than that of
  /// this channel, a stream that is captured or belongs to another device.
  void check(const Operation& operation) const;
  /// Throws InvalidArgument where bytes that are to be sent lie elsewhere.
  static void check(const Operation& operation, ConstByteSpan bytes);

  /// Where payloads of so many bytes lie for the network: pinned memory, or device memory where
  /// the network reads and writes that.
  BlockPool& network_pool(std::size_t bytes) const;
  BlockPool& pinned() const { return pinned_; }
  BlockPool& device() const { return device_; }
  FrameFault* fault() const { return reinterpret_cast<FrameFault*>(fault_.pointer()); }

  /// Waits until no queued work needs anything any more. False where it still does at `until`.
  bool settle(Clock::time_point until);

 private:
  friend class Copies;
  struct Events {
    kernels::Event ready, down, up;
  };
  /// What queued work needs until an event is done.
  struct Retired {
    std::unique_ptr<Events> events;
    const kernels::Event* last;
    std::vector<Block> blocks;
  };

  std::unique_ptr<Events> take_events();
  void sweep();

  std::shared_ptr<Channel> channel_;  // the pools of its world are where blocks go back to
  int number_;                        // of the device
  BlockPool& pinned_;
  BlockPool& device_;
  Stream down_, up_;
  kernels::PinnedBuffer fault_;
  std::vector<std::unique_ptr<Events>> free_events_;
  std::vector<Retired> retired_;
  std::vector<Block> lost_;  // of which no event could be recorded
};

/// The copies of one operation.
class Copies {
 public:
  Copies(Staging& staging, const Operation& operation);
  /// Keeps what queued work still needs.
  ~Copies();

  Staging& staging() const { return staging_; }

  /// The stream for copies down; they come after what is queued on the operation's stream.
  StreamView begin_down();
  void end_down();
  /// Whether copies down are queued and not yet done.
  bool going_down() const { return state_ == State::kDown; }
  /// True once they are done; from then on it is not asked again.
  bool came_down();

  /// The stream for copies up; what is queued on the operation's stream later comes after them.
  StreamView begin_up();
  void end_up();

  /// Keeps a block until copies are done.
  void keep(Block block) { blocks_.push_back(std::move(block)); }
  /// Keeps a block until the work is done that the caller has queued on the operation's stream
  /// when the handle goes.
  void keep_for_caller(Block block);

 private:
  enum class State { kIdle, kQueueingDown, kDown, kQueueingUp, kUp, kRead };
  StreamView down() const { return in_order_ ? stream_ : staging_.down_.view(); }
  StreamView up() const { return in_order_ ? stream_ : staging_.up_.view(); }
  const kernels::Event& last_event();

  Staging& staging_;
  StreamView stream_;
  bool in_order_;
  State state_ = State::kIdle;
  std::unique_ptr<Staging::Events> events_;
  std::vector<Block> blocks_;
};

/// As HostExchange, of payloads that lie on a device; without payloads, a barrier of what is queued
/// on the streams. And as make_reduction, of such parts.
std::unique_ptr<HostExchange> make_staged_exchange(Staging& staging, const Start& start,
                                                   std::size_t receives);
std::unique_ptr<HostTransfer> make_staged_reduction(Staging& staging, const Start& start,
                                                    const RingWork& work);

/// Does what may meet an error of the device: that ends the operation on all ranks.
template <typename Work>
auto on_device(const HostTransfer& transfer, Work&& work) try {
  return work();
} catch (const CudaError& error) {
  transfer.raise(error.what());
  throw;
} catch (const OutOfMemory& error) {
  transfer.raise(error.what());
  throw;
}

}  // namespace tersor::host
