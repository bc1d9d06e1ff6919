// What a host transport needs from the network below it: messages from one rank to another, started
// without waiting. All else (exchanges, sums, deadlines, agreement, poisoning) is built on this in
// HostTransport, so that in-process and MPI differ in their postman only.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/host/block_pool.h"
#include "comm/transport/host/envelope.h"

namespace tersor::host {

/// Which messages of one sender and one channel meet: equal keys in the order of posting.
struct MessageKey {
  std::uint32_t tag = 0;   ///< of the operation
  std::uint32_t part = 0;  ///< within the operation; the first message of a pair is part 0

  friend bool operator==(const MessageKey&, const MessageKey&) = default;
};

/// A message to send. The payload is read until its batch is closed; where it lies in a block, that
/// is shared instead of copied, for as long as the network reads it.
struct Outgoing {
  int peer = 0;
  ConstByteSpan payload = {};
  Block block = {};
};

/// A message to come. The postman fills in `source` and `payload`, then sets `arrived`.
struct Incoming {
  int peer = 0;  ///< or kAnyRank
  std::size_t least_bytes = 0;
  std::size_t capacity = 0;

  std::atomic<bool> arrived{false};
  int source = kAnyRank;
  Block payload;
  void* ticket = nullptr;  ///< the postman's own
};

/// Messages of one operation that are posted together. Stays where it is from `post` until it is
/// closed or cancelled.
struct Batch {
  std::string_view name;  ///< of the operation, for messages about it
  MessageKey key;
  Envelope envelope;  ///< of what is sent, and what must come, but for `bytes`
  std::span<Outgoing> outgoing;
  std::span<Incoming> incoming;
  std::shared_ptr<const void> keep_alive;  ///< owner of the payloads that are sent, or null
  BlockPool* pool = nullptr;               ///< a wish where payloads that come should lie, or null

  /// Messages still under way; set by `post`. The postman touches nothing of a batch after it has
  /// brought this to 0.
  std::atomic<std::uint32_t> open{0};
  bool closed() const { return open.load(std::memory_order_acquire) == 0; }
};

/// Which all_gathers go in rounds (rounds.h) and not directly: those of at least so many ranks and
/// at most so many bytes of each. The same on all ranks.
///
/// Measured in process (ranks as threads on 2 cores, 64 bytes of each, direct / rounds): without a
/// link 0.02 / 0.06 ms on 8 ranks, 0.24 / 0.31 ms on 32; over a link of 1 Gbit/s and 50 us 0.1 /
/// 0.4 ms on 8, 0.9 / 2.0 on 32, 2.8 / 3.0 on 64, 8.3 / 15 on 128, 69 / 57 on 256. With 1 KiB of
/// each the direct way won on all of these.
struct RoundsTuning {
  int least_ranks = 256;
  std::size_t most_bytes = 64;
};

/// The messages of one rank on one channel. One thread at a time, but for `wake`, `raise`,
/// `faulty`, `fault` and `counters`, which any thread may call.
class Postman {
 public:
  virtual ~Postman() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// How errors name a rank: "rank 2"; on a split also its number in the whole.
  virtual std::string name(int rank) const = 0;
  /// As Transport::hosts. Where the network cannot tell, each rank is on a host of its own.
  virtual std::vector<int> hosts() const;
  virtual RoundsTuning rounds_tuning() const { return {}; }
  virtual TransferCounters counters() const = 0;
  /// Memory that outlives whatever the network still reads or writes.
  virtual BlockPools& pools() = 0;
  /// From how many bytes on the network itself reads and writes device memory, in blocks.
  virtual std::size_t least_device_bytes() const { return std::numeric_limits<std::size_t>::max(); }

  /// Starts the messages of a batch. A message that is not what the batch expects (`disagreement`)
  /// never arrives: it ends in `raise`.
  virtual void post(Batch& batch) = 0;
  /// Forgets a batch that is not closed; its spans and its memory are not touched any more.
  virtual void cancel(Batch& batch) = 0;

  /// Moves what is under way; never waits.
  virtual void progress() = 0;
  /// Returns as soon as a batch was closed, a fault was raised or `wake` was called since the last
  /// `progress`, or `until` has come. May return early.
  virtual void wait(Clock::time_point until) = 0;
  virtual void wake() = 0;

  /// Records the cause of a fault and tells all ranks of all channels. The first cause stays.
  virtual void raise(const std::string& cause) = 0;
  virtual bool faulty() const = 0;
  /// The first cause; empty where there is none.
  virtual std::string fault() const = 0;
  /// Which rank is to be named when `peer` sends nothing under a tag: itself, or whom it waits for.
  /// May ask, and take up to `patience` for each answer.
  virtual int culprit(int peer, std::uint32_t /*tag*/,
                      std::chrono::milliseconds /*patience*/) const {
    return peer;
  }

  /// A channel of `members` (ranks of this one, ascending, the own among them), numbered anew.
  virtual std::shared_ptr<Postman> join(std::span<const int> members) = 0;
  /// This rank sends and takes no more: whoever still waits for it is told. Called once.
  virtual void leave() = 0;
};

}  // namespace tersor::host
