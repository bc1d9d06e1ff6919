// The interface of a network between ranks on hosts: ordered messages from rank to rank. To add a
// network, implement one class, Wire; `make_transport` builds a Transport from the wire. Exchanges,
// sums, channels, deadlines, agreement and aborts are common to all networks. Ranks in one process,
// MPI and TCP are wires.
#pragma once

#include <tersor/span.h>
#include <tersor/transport.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tersor {

namespace host {
class BlockPool;
}

/// The memory of a block. Pinned memory is host memory that a device copies asynchronously.
enum class BlockMemory : std::uint8_t { kHost, kPinned, kDevice };

/// A reference to a block of a pool. The last reference returns the block to the pool. Copies share
/// the bytes. Only the thread that took the block writes the bytes, and only before the block is
/// shared.
class Block {
 public:
  Block() = default;
  Block(const Block& other);
  Block(Block&& other) noexcept
      : slab_(std::exchange(other.slab_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}
  Block& operator=(Block other) noexcept {
    std::swap(slab_, other.slab_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Block();

  /// True if the block is not empty.
  explicit operator bool() const { return slab_ != nullptr; }
  /// Returns the bytes for writing, before the block is shared.
  ByteSpan writable() const { return bytes_; }
  /// Returns the bytes for reading.
  ConstByteSpan bytes() const { return bytes_; }
  /// Returns the kind of memory.
  BlockMemory memory() const;
  /// Returns a new reference to the bytes [first, first + count).
  Block part(std::size_t first, std::size_t count) const;

 private:
  friend class host::BlockPool;
  struct Slab;
  Block(Slab* slab, ByteSpan bytes) : slab_(slab), bytes_(bytes) {}

  Slab* slab_ = nullptr;
  ByteSpan bytes_;
};

/// The header of every message: 64 bytes, little-endian, sent unchanged.
struct MessageHead {
  std::array<std::uint64_t, 7> content{};  ///< used by the transport
  std::uint32_t sequence = 0;              ///< used by the wire if it numbers its messages
  std::uint32_t reserved = 0;              ///< 0

  /// Throws TransportError unless `peer` runs this version of the transport. A wire without its own
  /// check reads nothing else from the header before this check.
  void check(int peer) const;
  /// Returns the size of the payload in bytes.
  std::size_t payload_bytes() const;
  /// True if the message reports why its sender gives up. Such a message may overtake earlier
  /// messages.
  bool is_fault() const;
  /// True for the last message of a sender that leaves.
  bool is_goodbye() const;
};
static_assert(sizeof(MessageHead) == 64);

/// One rank's connections to all other ranks. A wire knows no channels and no operations. One
/// thread at a time calls the wire, from `start` to `end`. Network errors are TransportErrors.
class Wire {
 public:
  /// How a thread waits for messages.
  enum class Waiting : std::uint8_t {
    kPoll,          ///< calls `poll`, then yields the core, then naps
    kPollYielding,  ///< the same, and `poll` itself yields the core if there is no progress
    kRest,          ///< sleeps in `rest` between two calls of `poll`
    kSleep,         ///< sleeps until a message wakes the thread; `poll` is never needed
    kSleepAndPoll,  ///< sleeps until a message wakes the thread, or `poll` may find a message
  };

  /// The capabilities of a wire.
  struct Traits {
    /// True if any thread may call the wire, one thread at a time.
    bool any_thread = true;
    Waiting waiting = Waiting::kPoll;  ///< how a thread waits for messages
    /// True if every leaving peer sends a goodbye or is reported to Events::lost. Isolated channels
    /// need this capability.
    bool reports_losses = false;
    /// True if sent messages arrive even after their sender has ended. Goodbyes are then
    /// unnecessary.
    bool keeps_sent = false;
    /// True if the wire sends from any memory. If false, payloads above copied_bytes must lie in
    /// blocks.
    bool sends_in_place = true;
    /// True if the wire implements `keep`, which ends the use of the sender's memory at any time.
    bool borrows = false;
    /// Credit of each peer in bytes for messages without a matching receive. Messages beyond the
    /// credit wait at their sender.
    std::size_t most_eager_bytes = std::size_t{16} << 20;
    /// `send` copies payloads of up to this number of bytes.
    std::size_t copied_bytes = 0;
    /// Payloads of at least this number of bytes may lie on a device.
    std::size_t least_device_bytes = std::numeric_limits<std::size_t>::max();
  };

  /// A payload in transfer.
  struct Job {
    std::shared_ptr<const void> keep_alive;  ///< owner of the bytes, or null; see `keep`
    Block memory;                            ///< block with the bytes, or empty; used by the wire
    /// Called after the bytes were sent or received; may be empty.
    std::function<void(Job& job)> done;
    std::size_t open = 0;  ///< number of parts in transfer, maintained by the wire
  };

  /// The payload of a sent header. `send` copies up to Traits::copied_bytes. Longer payloads lie in
  /// `block` or belong to the job; the wire keeps the owner until the bytes have left.
  struct Payload {
    ConstByteSpan bytes = {};  ///< the payload
    Block block = {};          ///< the block that contains the bytes, or empty
    /// Set if the sender asks whether the bytes have left, else null.
    std::shared_ptr<Job> job = {};
  };

  /// A received header, with its payload if `whole`. Otherwise `receive_rest` requests the payload.
  struct Arrival {
    MessageHead head;  ///< the received header
    /// If not `whole`: empty, or the wire's own destination.
    Block payload = {};
    int peer = 0;            ///< the sender
    bool whole = true;       ///< True if the payload is complete
    void* ticket = nullptr;  ///< used by the wire
  };

  /// Callbacks of a wire. Only `send`, `receive_rest` and `poll` invoke the callbacks, which may
  /// call `send` and `receive_rest`.
  struct Events {
    /// Called for each header, in the order of sending per peer.
    std::function<void(Arrival arrival)> take;
    /// Called once for a peer that left without a goodbye, after all its received messages.
    std::function<void(int peer, const std::string& cause)> lost = {};
  };

  /// kCoordinated if all other ranks sent a goodbye before this rank ends; else kUncoordinated.
  enum class Shutdown { kCoordinated, kUncoordinated };

  /// State common to wires that receive each other's messages: a lock, and the pools of their
  /// blocks.
  struct Shared;

  Wire();
  virtual ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// Returns the capabilities of this wire.
  virtual Traits traits() const { return {}; }
  /// Returns this rank, from 0 to ranks() - 1.
  virtual int rank() const = 0;
  /// Returns the number of ranks.
  virtual int ranks() const = 0;
  /// Returns a number per rank; ranks of one host have equal numbers.
  virtual std::vector<int> host_names() const = 0;
  /// Returns the bytes on the wire for one payload, headers included.
  virtual std::size_t wire_bytes(std::size_t payload_bytes) const {
    return sizeof(MessageHead) + payload_bytes;
  }

  /// Starts to receive messages. Called once, before all functions below.
  virtual void start(Events events) = 0;
  /// Ends the wire: later messages are dropped, and `poll` finds nothing. Returns true if the
  /// network has released all memory of this wire. If false, the network may still access the
  /// memory, and the wire is never destroyed. Throws nothing.
  virtual bool end(Shutdown shutdown) = 0;

  /// Starts a message of `head.payload_bytes()` bytes to rank `peer`; never waits.
  virtual void send(int peer, MessageHead head, Payload payload) = 0;
  /// Called if the operation of a job ends early. Copies the unsent bytes of the job's payload to
  /// `peer` into a block, because the payload may change or end afterwards, despite its owner.
  /// `job` may point to a job that ended. Throws nothing. Only wires with `borrows` implement this
  /// function.
  virtual void keep(int /*peer*/, const Job* /*job*/) {}
  /// Starts to receive the payload of an arrival that is not whole.
  virtual void receive_rest(const Arrival& /*arrival*/, ByteSpan /*into*/,
                            const std::shared_ptr<Job>& /*job*/) {}
  /// Returns the earliest time at which the payload of an incomplete arrival can be complete. Only
  /// wires with `moves_alone` implement this function.
  virtual Clock::time_point earliest(const Arrival&) const { return Clock::time_point::max(); }

  /// Completes finished operations; never waits. True if an operation was completed.
  virtual bool poll() = 0;
  /// True once all sent messages have left, and all accepted payloads have arrived.
  virtual bool quiet() const = 0;
  /// Pauses a waiting thread briefly between two polls.
  virtual void pause() const;
  /// Sleeps until a poll may make progress, the descriptor `alarm` is readable (-1: none), or
  /// `until` is reached. Rarely returns early. Any thread may call `rest` while other threads use
  /// the wire.
  virtual void rest(int /*alarm*/, Clock::time_point /*until*/) const { pause(); }

  /// False once the network is gone. Functions that move bytes must not be called then.
  virtual bool running() const { return true; }
  /// Records the calling thread as the current user, for networks that admit several threads in
  /// turn.
  virtual void record_use() {}
  /// True if the calling thread may move bytes now.
  virtual bool right_thread() const { return true; }
  /// Calls `record_use`. Throws InvalidArgumentError if the network is gone or does not admit this
  /// thread.
  virtual void check_thread() {}
  /// True if `peer` detects this rank's exit itself, because a connection ends. Such a peer
  /// receives the report of a fault before this rank disconnects. Otherwise the peer would blame
  /// this rank.
  virtual bool exit_is_visible_to(int /*peer*/) const { return false; }
  /// Returns why no message from `peer` can arrive yet, as a remark in error texts. Empty if the
  /// wire knows no reason.
  virtual std::string missing_message_reason(int /*peer*/) const { return {}; }
  /// Called after a fault: received messages are no longer needed, and the network may now wait for
  /// failed ranks.
  virtual void record_abort() {}

  /// Returns the state common to wires that receive each other's messages.
  Shared& shared() const { return *shared_; }

 protected:
  /// `shared` is the state common to wires that receive each other's messages.
  explicit Wire(std::shared_ptr<Shared> shared);
  /// Returns a block for payloads, 64-byte aligned. Thread-safe.
  Block take_block(std::size_t bytes) const;

 private:
  std::shared_ptr<Shared> shared_;
};

/// Returns the transport of the wire's rank. Starts and owns the wire.
std::unique_ptr<Transport> make_transport(std::unique_ptr<Wire> wire);

}  // namespace tersor
