// The transport interface: ranks, and the movement of bytes between ranks. A transport knows no
// codec. Every operation starts and returns a handle. Only functions documented as blocking wait.
#pragma once

#include <tersor/span.h>
#include <tersor/stream.h>
#include <tersor/wire.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor {

class Agreement;  // defined in <tersor/agreement.h>
class Block;      // defined in <tersor/network.h>

/// The clock of all deadlines.
using Clock = std::chrono::steady_clock;
/// The default time after which a rank is late: five minutes.
inline constexpr std::chrono::milliseconds kDefaultTimeout{300'000};

/// Identifies the Transport function that a rank called. Messages carry this number, so mismatched
/// calls are detected. Functions built on other functions (`send` on `exchange`) set the number.
enum class Calling : std::uint8_t {
  kAllToAll = 1,
  kAllGather = 2,
  kSend = 3,  ///< also `receive` and `receive_any`, the other end
  kSum = 4,
  kMaximum = 5,
  kBarrier = 6,
  kGatherInRounds = 7,  ///< an all_gather that a transport splits into several steps
  kExchange = 8,
};

/// The tag of `send` and `receive`. Only two ranks take part in such a message, so no tag is
/// reserved. Messages from one rank arrive in the order of sending. Their order relative to other
/// operations is undefined.
inline constexpr std::uint32_t kUnorderedTag = 0xffffffff;

/// The description of an operation. All ranks must pass equal descriptions; otherwise every rank
/// gets a TransportError.
struct Operation {
  /// Used in error messages, e.g. "allreduce"; must outlive the handle.
  std::string_view name = "operation";
  /// Signature of the collective that contains the operation.
  std::uint64_t signature = 0;
  /// The options behind the signature, or null. If signatures differ between ranks, the error names
  /// every option that differs.
  std::shared_ptr<const Agreement> agreement = {};
  /// Distinguishes concurrent operations on one channel; take the tag from `reserve_tags`. If
  /// TransportTraits::ordered is true, all ranks must also start operations in the same order.
  std::uint32_t tag = 0;
  /// The called function.
  Calling calling = Calling::kExchange;
  /// True if this rank starts no later exchange or all_gather with the same tag. An unexpected
  /// message with this tag then shows that its sender made another call. All ranks get the error at
  /// once.
  bool takes_all = false;
  /// Time after which a rank is late.
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// Memory of the sent and received bytes. Value spans state their own memory.
  Memory memory = Memory::kHost;
  /// Device memory: sent bytes are valid when the stream reaches the operation. Received bytes are
  /// valid for work queued on the stream after the wait for the handle.
  StreamView stream = {};
  /// True if, in device memory, nothing else is queued on the stream until the wait for the handle.
  /// A second stream then gains nothing.
  bool in_order = false;
  /// The size of all sums of the same collective, in bytes, for sums without a required order. All
  /// of these sums then use one order. If 0, each part is added in the order of ranks owner + 1, …,
  /// owner.
  std::size_t whole_bytes = 0;
  /// Owner of the sent bytes, or null. A transport keeps the owner as long as the network may read
  /// the bytes. After a failed operation, this time can exceed the handle's lifetime: do not
  /// overwrite the bytes then. The owner's destructor must not call the transport. Without an
  /// owner, the transport copies bytes that the network may read after the handle's lifetime.
  std::shared_ptr<const void> keep_alive = {};
  /// The block that contains the messages: a result of `Transport::block`, or null. No thread may
  /// write to the block any more.
  const Block* block = nullptr;
};

/// A message of an exchange. The bytes must outlive the operation: until the handle is done, throws
/// or is dropped.
struct SendTo {
  int peer = 0;              ///< the other rank
  ConstByteSpan bytes = {};  ///< the message
};

/// A value of ReceiveFrom::peer: accepts the first message with this tag from any rank.
inline constexpr int kAnyRank = -1;

/// The source of a message of at most `capacity` bytes in an exchange.
struct ReceiveFrom {
  int peer = 0;              ///< the other rank
  std::size_t capacity = 0;  ///< maximum bytes of the message
};

/// An operation in progress, owned by its handle. Transports implement this class.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// See Handle::test.
  virtual bool test() = 0;
  /// See Handle::wait_synchronize.
  virtual void wait_synchronize() = 0;
  /// See Handle::received.
  virtual ConstByteSpan received(int rank) const = 0;
  /// See Handle::source.
  virtual int source() const = 0;
};

/// A handle of an operation in progress. An unfinished handle may be dropped only while an
/// exception unwinds; the transport then keeps all memory that the network may still write. Use a
/// handle only on the thread of its channel.
class Handle {
 public:
  Handle() = default;
  /// Takes ownership of an operation.
  explicit Handle(std::unique_ptr<Transfer> transfer) : transfer_(std::move(transfer)) {}

  /// True if the handle owns an operation.
  bool valid() const { return transfer_ != nullptr; }

  /// True once the operation is done. Makes progress and never waits. Throws TransportError if the
  /// operation failed. If TransportTraits::queues is true, returns true at once, and the
  /// operation's stream waits from here on.
  bool test() { return transfer_->test(); }

  /// Blocks the calling thread until the operation is done. At the operation's timeout, throws a
  /// TransportError that names the operation, the cause and the rank of the missing message.
  void wait_synchronize() { transfer_->wait_synchronize(); }

  /// Returns the bytes from `rank`, in the transport's memory, 16-byte aligned. The bytes are valid
  /// as long as this handle; on a device they are valid for work queued on the operation's stream.
  /// Returns an empty span for this rank itself.
  ConstByteSpan received(int rank) const { return transfer_->received(rank); }

  /// Returns the sender of a message received from `kAnyRank`.
  int source() const { return transfer_->source(); }

 private:
  std::unique_ptr<Transfer> transfer_;
};

/// Default length of a chunk, in values over all parts. Long gradients are cut into chunks, so
/// encode, communication and decode overlap.
inline constexpr std::size_t kDefaultChunkCount = std::size_t{1} << 20;

/// The capabilities of a transport.
struct TransportTraits {
  /// True if any thread may call the transport, one thread at a time per channel.
  bool any_thread = true;
  /// True if all ranks must start operations in the same order.
  bool ordered = false;
  /// True if `receive_any` and `kAnyRank` are available.
  bool receive_any = true;
  /// True if all operations accept host memory. If false, only all_gather does.
  bool host = true;
  /// True if operations accept device memory.
  bool device = false;
  /// True if device operations are queued and never block the host; see `Handle::test`.
  bool queues = false;
  /// True if native sums depend only on the values.
  bool deterministic = true;
  /// Length of a chunk in values, if the options do not set a length.
  std::size_t chunk_count = kDefaultChunkCount;
};

/// The bytes that one channel moved for this rank, including the transport's headers.
struct TransferCounters {
  std::uint64_t sent_bytes = 0;      ///< sent bytes
  std::uint64_t received_bytes = 0;  ///< received bytes
  std::uint64_t sent_messages = 0;   ///< sent messages
};

/// Ranks, and the movement of bytes between ranks. A fault (a rank failed, is late, or made a
/// mismatched call) raises TransportError on every rank. The fault aborts the transport with all
/// its channels and splits, except isolated channels (`isolated_channel`); every later call throws
/// at once. Destroy handles before their transport. TransportTraits::any_thread states the threads
/// that may call.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Returns this rank, from 0 to ranks() - 1.
  virtual int rank() const = 0;
  /// Returns the number of ranks.
  virtual int ranks() const = 0;
  /// Returns the host number of each rank. Ranks with equal numbers share a machine. Hosts are
  /// numbered from 0 in the order of their lowest ranks, so the result is equal on all ranks.
  virtual std::vector<int> hosts() const = 0;
  /// Returns the capabilities of this transport.
  virtual TransportTraits traits() const = 0;
  /// Returns the traffic since the channel was made. Thread-safe.
  virtual TransferCounters counters() const = 0;

  /// Reserves `count` consecutive tags and returns the first. All ranks must reserve in the same
  /// order.
  virtual std::uint32_t reserve_tags(std::uint32_t count) = 0;

  /// Returns host memory of at least `bytes` bytes for messages that are handed over without a
  /// copy. Returns an empty block if the transport sends from any memory or copies. Destroy the
  /// block before the transport.
  virtual Block block(std::size_t bytes);

  /// Starts messages to and from peers, all at once. `sends` lists the messages to send; `receives`
  /// lists the expected messages with their capacities in bytes. Either list may be empty. A list
  /// contains each peer at most once and never this rank. If `receives` contains `kAnyRank`,
  /// `receives` has no other entry. The peer must receive each message in an exchange (not
  /// `receive`) with the same tag. If TransportTraits::queues is true, all ranks must call
  /// `exchange`, except between `begin` and `end`. Throws InvalidArgumentError and TransportError,
  /// like all operations below.
  virtual Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                          std::span<const ReceiveFrom> receives) = 0;

  /// Sends sends[r] to rank r and receives at most capacities[r] bytes from rank r. Both lists have
  /// one entry per rank; the entry of this rank is ignored.
  Handle all_to_all(Operation operation, std::span<const ConstByteSpan> sends,
                    std::span<const std::size_t> capacities);
  /// Sends one message to rank `peer`. Only the two ranks take part.
  Handle send(Operation operation, int peer, ConstByteSpan bytes);
  /// Receives one message of at most `capacity` bytes from rank `peer`.
  Handle receive(Operation operation, int peer, std::size_t capacity);
  /// Receives the first message with this tag from any rank. See TransportTraits::receive_any.
  Handle receive_any(Operation operation, std::size_t capacity);

  /// Sends `send` to all other ranks and receives at most `capacity` bytes from each. All ranks
  /// must pass the same capacity.
  virtual Handle all_gather(const Operation& operation, ConstByteSpan send,
                            std::size_t capacity) = 0;

  /// Completes once all ranks have started the barrier. Implemented as an all_gather of 0 bytes.
  Handle barrier(Operation operation);

  /// Adds f32, f16, bf16, i8, i32 or u32 values over all ranks, in place. Rank r owns parts[r], of
  /// any count, and adds it in the order of ranks r + 1, …, r (cyclic). The result therefore
  /// depends only on the values and the parts, except over NCCL. Sums of bf16 and f16 are computed
  /// in f32 and rounded at each hop. The values must outlive the handle's completion.
  ///
  /// All ranks must pass the same counts and types. Addresses, and whether parts touch, may differ
  /// between ranks. Over NCCL, each part that is not empty is a call of NCCL, and no rank owns
  /// anything. Pass contiguous values as a single part there, with empty parts for other ranks.
  virtual Handle sum(const Operation& operation, std::span<const ValueSpan> parts) = 0;
  /// Takes the maximum over all ranks, in place, of values of the same types.
  virtual Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) = 0;

  /// Returns a channel: the same ranks with separate messages. All ranks must make their channels
  /// in the same order.
  virtual std::unique_ptr<Transport> channel() = 0;
  /// Returns a transport over the ranks of `members`, renumbered from 0. The list is ascending and
  /// contains this rank. All members must call `split` with the same list.
  virtual std::unique_ptr<Transport> split(std::span<const int> members) = 0;
  /// Returns an isolated channel of the same ranks. Each operation fails alone: an operation that
  /// waits for a lost or late rank throws PeerLostError. No other operation ends, and faults
  /// elsewhere do not affect the channel. An exchange still sends its other messages. A late rank
  /// is not excluded and may send later.
  ///
  /// The channel supports only host memory, and only exchange, all_to_all, send, receive and
  /// receive_any; `abort` throws. A split of the channel is an ordinary transport, unaffected by
  /// earlier and outside faults. A channel of the channel is again isolated. All ranks must make
  /// isolated channels before a fault, in the same order as channels. Throws InvalidArgumentError
  /// over MPI, which promises nothing after the loss of a rank, and over NCCL, which queues. Use
  /// make_tcp_transport in these cases.
  virtual std::unique_ptr<Transport> isolated_channel();
  /// The former name of `isolated_channel`.
  [[deprecated("use isolated_channel")]] std::unique_ptr<Transport> lifeline() {
    return isolated_channel();
  }

  /// Device memory: opens one collective. Until `end`, operations with this signature and stream
  /// belong to the collective. It starts after all work queued earlier on this channel, on any
  /// stream. Its deadline is the operation's deadline, counted on the device.
  ///
  /// Throws errors detected since the last call. For a new signature, `begin` compares the
  /// signatures of all ranks and blocks; the stream must not be captured then. An operation outside
  /// `begin` and `end` is a collective of its own.
  virtual void begin(const Operation&) {}
  /// Closes the collective that `begin` opened.
  virtual void end(const Operation&) {}
  /// Returns the pinned memory for faults in received frames; null if the transport does not
  /// support device memory.
  virtual FrameFault* fault() { return nullptr; }

  /// Makes progress on operations and never waits. Throws TransportError if the transport is
  /// aborted.
  virtual void progress() = 0;
  /// Blocks until an operation of this channel completes, `wake` is called, or `until` is reached.
  /// Events since the last return count. May return early. Throws TransportError if the transport
  /// is aborted or an operation has reached its deadline.
  virtual void wait_activity(Clock::time_point until) = 0;
  /// Ends a `wait_activity` of another thread. An early call is not lost. Thread-safe.
  virtual void wake() = 0;

  /// Aborts the transport: tells every peer that this rank gives up, with `cause`. Every call on
  /// all ranks, channels and splits then throws a TransportError with this cause; isolated channels
  /// continue. Thread-safe.
  virtual void abort(std::string_view cause) = 0;
  /// The former name of `abort`.
  [[deprecated("use abort")]] void poison(std::string_view cause) { abort(cause); }

  /// Leaves the group, with all channels and splits, while these objects still exist. Pending and
  /// later operations throw TransportError. TCP sends goodbyes and closes all connections; NCCL
  /// aborts its communicators. Thread-safe.
  virtual void close() = 0;
};

}  // namespace tersor
