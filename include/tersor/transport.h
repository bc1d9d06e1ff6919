// The contract of a transport: ranks, and the movement of bytes between them. It sees no codec.
// Every operation starts and gives back a handle; nothing waits that does not say so.
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

class Block;  // <tersor/network.h>

using Clock = std::chrono::steady_clock;
inline constexpr std::chrono::milliseconds kDefaultTimeout{300'000};

/// Which member of Transport a rank called. Messages carry the number, so that ranks which call
/// different members find out. Members that are built on others (`send` on `exchange`) set it.
enum class Calling : std::uint8_t {
  kAllToAll = 1,
  kAllGather = 2,
  kSend = 3,  ///< and its other end, `receive` or `receive_any`
  kSum = 4,
  kMaximum = 5,
  kBarrier = 6,
  kGatherInRounds = 7,  ///< an all_gather that a transport takes in several steps
  kExchange = 8,
};

/// The tag of `send` and `receive`. Two ranks exchange such messages, and the others know nothing
/// of it, so no tag is reserved. Messages from one rank come in the order in which it sent them;
/// between them and other operations there is no order.
inline constexpr std::uint32_t kUnorderedTag = 0xffffffff;

/// What each operation says of itself. All ranks must say the same, else all get a TransportError.
struct Operation {
  std::string_view name = "operation";  ///< for messages: "allreduce", …; must outlive the handle
  std::uint64_t signature = 0;          ///< of the collective that it belongs to
  /// Tells operations under way on one channel apart; from `reserve_tags`. Where
  /// TransportTraits::ordered is set all ranks must also start them in one order.
  std::uint32_t tag = 0;
  Calling calling = Calling::kExchange;
  /// Of an exchange or all_gather: no later operation of this rank takes messages of the tag. A
  /// message of the tag that this operation does not expect is a mistake: its sender called
  /// something else. All ranks get the error at once.
  bool takes_all = false;
  std::chrono::milliseconds timeout = kDefaultTimeout;
  Memory memory = Memory::kHost;  ///< of bytes sent and received; values say where they lie
  /// Device memory: what is sent is there when the stream has come so far; what is received is
  /// there for what is queued on it once the handle was waited for.
  StreamView stream = {};
  /// Device memory: nothing else is queued on the stream until the handle was waited for, so that
  /// nothing is won by a second stream.
  bool in_order = false;
  /// Of a sum whose order is left open: the bytes of all sums of the same collective, which are
  /// then added in one order. 0: each part in that of ranks owner + 1, …, owner.
  std::size_t whole_bytes = 0;
  /// Owner of the bytes that are sent. A transport keeps it for as long as the network below may
  /// read them, beyond the handle where an operation fails and cannot be called back. Giving it up
  /// must not call the transport.
  std::shared_ptr<const void> keep_alive = {};
  /// In which messages lie: one of `Transport::block`, or null. Nobody writes to it any more.
  const Block* block = nullptr;
};

/// A message of an exchange. The bytes must outlive the handle's completion.
struct SendTo {
  int peer = 0;
  ConstByteSpan bytes = {};
};

/// Of `ReceiveFrom`: whichever rank sends with this tag first.
inline constexpr int kAnyRank = -1;

/// Where an exchange takes a message of at most `capacity` bytes from.
struct ReceiveFrom {
  int peer = 0;
  std::size_t capacity = 0;
};

/// An operation under way, owned by its handle. Implemented by transports.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool test() = 0;
  virtual void wait_synchronize() = 0;
  virtual ConstByteSpan received(int rank) const = 0;
  virtual int source() const = 0;
};

/// A handle of an operation under way. Dropping it before it is done is allowed only while an error
/// unwinds: the transport then keeps what the network below may still write to.
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::unique_ptr<Transfer> transfer) : transfer_(std::move(transfer)) {}

  bool valid() const { return transfer_ != nullptr; }

  /// True once done; moves things forward, never waits. Throws TransportError where it failed.
  /// Of a transport that queues: true at once, and the operation's stream waits from here on.
  bool test() { return transfer_->test(); }

  /// Blocks the calling thread until done or until the operation's timeout; then throws
  /// TransportError that names operation, cause, and the rank whose message is missing.
  void wait_synchronize() { transfer_->wait_synchronize(); }

  /// The bytes that came from a rank: memory of the transport, 16-byte aligned, valid as long as
  /// this handle; empty for this rank itself.
  /// On a device: valid for work queued on the operation's stream.
  ConstByteSpan received(int rank) const { return transfer_->received(rank); }

  /// Of what came from `kAnyRank`: the rank whose message it is.
  int source() const { return transfer_->source(); }

 private:
  std::unique_ptr<Transfer> transfer_;
};

/// Values of a chunk over all parts: long gradients are cut, so that encode, wire and decode
/// overlap.
inline constexpr std::size_t kDefaultChunkCount = std::size_t{1} << 20;

/// What a transport is able to do: asked instead of its type.
struct TransportTraits {
  bool any_thread = true;     ///< may be called from any thread (one at a time for each channel)
  bool ordered = false;       ///< operations must be started in the same order on all ranks
  bool receive_any = true;    ///< `receive_any` and `kAnyRank` are there
  bool host = true;           ///< takes host memory for all; else for all_gather alone
  bool device = false;        ///< takes device memory
  bool queues = false;        ///< of device memory: nothing waits on the host, see `Handle::test`
  bool deterministic = true;  ///< native sums depend on nothing but the values
  /// Values of a chunk, where the options leave it to the transport.
  std::size_t chunk_count = kDefaultChunkCount;
};

/// Bytes that one channel really moved for this rank, headers of the transport included.
struct TransferCounters {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_messages = 0;
};

/// Ranks and the movement of bytes. A fault (a peer gone, late, or calling something else) ends in
/// TransportError on every rank and poisons the transport with all its channels and splits, but for
/// lifelines: every later call says so at once. Handles end before the transport that they came
/// from.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// For each rank the number of its host; ranks of equal numbers share a machine. Hosts count from
  /// 0 in the order of their lowest ranks, so all ranks get the same answer.
  virtual std::vector<int> hosts() const = 0;
  virtual TransportTraits traits() const = 0;
  /// Since the channel was made. May be called from any thread.
  virtual TransferCounters counters() const = 0;

  /// Tags for `count` operations. All ranks reserve in the same order.
  virtual std::uint32_t reserve_tags(std::uint32_t count) = 0;

  /// Host memory of at least so many bytes to make messages in, which are then handed over; an
  /// empty block where the transport takes them from any memory, or copies them. Ends before it.
  virtual Block block(std::size_t bytes);

  /// Messages to some peers and from some, all started at once; either list may be empty. A peer
  /// stands in each at most once, this rank in none, and `kAnyRank` alone in the second. What one
  /// rank sends, its peer takes in an exchange (no `receive`) with the same tag. Over a transport
  /// that queues all ranks call it, unless it stands between `begin` and `end`.
  virtual Handle exchange(const Operation& operation, std::span<const SendTo> sends,
                          std::span<const ReceiveFrom> receives) = 0;

  /// sends[r] goes to rank r (own entry ignored); at most capacities[r] bytes come from rank r.
  Handle all_to_all(Operation operation, std::span<const ConstByteSpan> sends,
                    std::span<const std::size_t> capacities);
  /// The two ends of a message; no other rank knows of it.
  Handle send(Operation operation, int peer, ConstByteSpan bytes);
  Handle receive(Operation operation, int peer, std::size_t capacity);
  /// From whichever rank sends with this tag first.
  Handle receive_any(Operation operation, std::size_t capacity);

  /// `send` goes to all others; at most `capacity` bytes come from each of them. All ranks give the
  /// same capacity.
  virtual Handle all_gather(const Operation& operation, ConstByteSpan send,
                            std::size_t capacity) = 0;

  /// Done when all ranks have begun it: a gather of nothing.
  Handle barrier(Operation operation);

  /// In-place sum over ranks, of f32, f16, bf16, i8, i32 or u32. parts[r], of any count, is owned
  /// by rank r and added in the order of ranks r + 1, …, r (cyclic), so the result depends on the
  /// values and the parts alone (but for NCCL). bf16 and f16 add in f32 and round at each hop.
  /// The values must outlive the handle's completion.
  virtual Handle sum(const Operation& operation, std::span<const ValueSpan> parts) = 0;
  /// In-place maximum over ranks, of the same types.
  virtual Handle maximum(const Operation& operation, std::span<const ValueSpan> parts) = 0;

  /// The same ranks with messages of their own. All ranks make their channels in the same order.
  virtual std::unique_ptr<Transport> channel() = 0;
  /// The ranks of `members` (ascending, this rank among them), numbered anew from 0. Called by all
  /// members with the same list.
  virtual std::unique_ptr<Transport> split(std::span<const int> members) = 0;
  /// The same ranks with messages of their own, of which each operation ends alone: who waits for a
  /// rank that is gone or late gets PeerLost; nothing else ends, and faults elsewhere do not reach
  /// it. What an exchange sends to the others goes all the same; who is late is not marked, and may
  /// come later. Host memory by exchange, all_to_all, send, receive and receive_any alone; `poison`
  /// is refused. A split of it is an ordinary transport that faults before and outside of it do not
  /// reach, a channel is a lifeline. All ranks make it, in the order of their channels, before a
  /// fault. Throws InvalidArgument where the network promises nothing once a rank is gone (MPI) and
  /// where the transport queues (NCCL): take TcpTransport.
  virtual std::unique_ptr<Transport> lifeline();

  /// Device memory: between both, operations with this signature and stream are parts of one
  /// collective, which begins after whatever this channel queued before, on any stream, and whose
  /// deadline is the operation's, counted on the device. `begin` throws what was found wrong since
  /// the last call, and gathers a signature that it does not know on all ranks: then it waits, and
  /// the stream must not be captured. An operation outside of both is a collective of its own.
  virtual void begin(const Operation&) {}
  virtual void end(const Operation&) {}
  /// Device memory: where calls on received frames report what is wrong with them; pinned memory.
  /// Null where the transport takes no device memory.
  virtual FrameFault* fault() { return nullptr; }

  /// Moves what is under way; never waits. Throws TransportError where the transport is poisoned.
  virtual void progress() = 0;
  /// Blocks until an operation of this channel is done, or `wake` was called, since the last
  /// return, or `until` has come. May return early. Throws TransportError where the transport is
  /// poisoned, or where an operation under way has reached its deadline.
  virtual void wait_activity(Clock::time_point until) = 0;
  /// Ends a `wait_activity` of another thread; one that comes before it is not lost.
  virtual void wake() = 0;

  /// Tells every peer that this rank gives up, and why; every call of theirs and ours, on all
  /// channels and splits but lifelines, then throws TransportError with this cause. May be called
  /// from any thread.
  virtual void poison(std::string_view cause) = 0;
};

}  // namespace tersor
