// The contract of a network below ranks on hosts: messages from one rank to another, in order. A
// new network is one class, a Wire, and `make_transport` makes a Transport of it: exchanges, sums,
// channels, deadlines, agreement and poisoning are the same on all of them. Ranks in one process,
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

/// What blocks are made of. Pinned memory is the host's as well, and what a device copies from and
/// to while nobody waits.
enum class BlockMemory : std::uint8_t { kHost, kPinned, kDevice };

/// One reference to a block of a pool; the last one gives it back. Copies share the bytes, which
/// are written by whoever took the block and only read once it is shared.
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

  explicit operator bool() const { return slab_ != nullptr; }
  ByteSpan writable() const { return bytes_; }
  ConstByteSpan bytes() const { return bytes_; }
  BlockMemory memory() const;
  /// One reference more, to a part of the bytes.
  Block part(std::size_t first, std::size_t count) const;

 private:
  friend class host::BlockPool;
  struct Slab;
  Block(Slab* slab, ByteSpan bytes) : slab_(slab), bytes_(bytes) {}

  Slab* slab_ = nullptr;
  ByteSpan bytes_;
};

/// What stands before every payload: 64 bytes, little-endian, that travel as they are.
struct MessageHead {
  std::array<std::uint64_t, 7> content{};  ///< the transport's
  std::uint32_t sequence = 0;              ///< the wire's own, if it numbers its messages
  std::uint32_t reserved = 0;

  /// Throws TransportError unless a `peer` of this version of the transport wrote it: a wire that
  /// did not check that reads nothing else of it.
  void check(int peer) const;
  std::size_t payload_bytes() const;
  /// It says why its sender gives up, and may overtake what was sent before.
  bool is_fault() const;
  /// The last one of its sender, which goes then.
  bool is_goodbye() const;
};
static_assert(sizeof(MessageHead) == 64);

/// One rank's end of its connections to all others. Knows no channel and no operation. Called by
/// one thread at a time, from `start` to `end`. Errors of the network are TransportErrors.
class Wire {
 public:
  /// What a wire is able to do: asked instead of its type.
  struct Traits {
    bool any_thread = true;  ///< may be called from any thread (one at a time)
    bool polled = true;      ///< `poll` may find something; else it need not be called
    /// Things move while nobody polls: a thread that waits sleeps, until a message that it was
    /// given wakes it.
    bool moves_alone = false;
    bool rests = false;       ///< a thread that waits may sleep in `rest`
    bool yields = false;      ///< `poll` lends the core to others where it finds nothing
    bool comes_soon = false;  ///< such a thread lends its core for some microseconds before
    /// No peer goes without a goodbye or a word to Events::lost: there may be lifelines.
    bool tells_losses = false;
    bool keeps_sent = false;  ///< what was sent comes, though its sender has ended: no goodbyes
    /// Takes memory of others; else payloads lie in blocks, but for the copied ones.
    bool sends_in_place = true;
    /// Of each peer, for what nobody has asked for: beyond that its messages wait at their sender.
    std::size_t most_unasked_bytes = std::size_t{16} << 20;
    std::size_t copied_bytes = 0;  ///< payloads of up to so many bytes are copied by `send`
    /// From how many bytes on payloads may lie on a device.
    std::size_t least_device_bytes = std::numeric_limits<std::size_t>::max();
  };

  /// A payload that is under way.
  struct Job {
    std::shared_ptr<const void> keep_alive;  ///< owner of the bytes, or null
    Block memory;                            ///< that holds them, or none: the wire's to use
    std::function<void(Job& job)> done;      ///< called once it has left or come; may be empty
    std::size_t open = 0;                    ///< parts under way, counted by the wire
  };

  /// What stands behind a head that is sent. Up to Traits::copied_bytes are copied by `send`; more
  /// lie in `block` or are owned by the job, which the wire keeps until they have left.
  struct Payload {
    ConstByteSpan bytes = {};
    Block block = {};
    std::shared_ptr<Job> job = {};  ///< of somebody who asks whether they have left, or null
  };

  /// A head that came, with its payload where `whole`; else that is received when asked for.
  struct Arrival {
    MessageHead head;
    Block payload = {};  ///< not whole: none, or where the wire itself puts it
    int peer = 0;
    bool whole = true;
    void* ticket = nullptr;  ///< the wire's own
  };

  /// What a wire tells. Called by `send`, `receive_rest` and `poll` alone; may call `send` and
  /// `receive_rest` in turn.
  struct Events {
    /// For each head, in the order in which its peer sent them.
    std::function<void(Arrival arrival)> take;
    /// Nothing more comes from a peer that said no goodbye: behind all that did come, once.
    std::function<void(int peer, const std::string& cause)> lost = {};
  };

  /// Whether all other ranks said goodbye before this one ends.
  enum class Parting { kAgreed, kAlone };

  /// What wires share that take each other's messages: a lock, and the pools of their blocks.
  struct Shared;

  Wire();
  virtual ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  virtual Traits traits() const { return {}; }
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// For each rank a number that ranks of one host share.
  virtual std::vector<int> host_names() const = 0;
  /// Bytes that travel for a payload, heads included.
  virtual std::size_t wire_bytes(std::size_t payload_bytes) const {
    return sizeof(MessageHead) + payload_bytes;
  }

  /// Takes every message from now on. Called once, before all that follows.
  virtual void start(Events events) = 0;
  /// Ends the wire: messages are dropped from now on, and `poll` finds nothing. Returns whether the
  /// network has let go of this wire. If not, the network may still read and write its memory, and
  /// the wire is never destroyed. Throws nothing.
  virtual bool end(Parting parting) = 0;

  /// Starts a message of `head.payload_bytes()` to another rank; never waits.
  virtual void send(int peer, MessageHead head, Payload payload) = 0;
  /// Starts to receive the payload of an arrival that is not whole.
  virtual void receive_rest(const Arrival& /*arrival*/, ByteSpan /*into*/,
                            const std::shared_ptr<Job>& /*job*/) {}
  /// Of such an arrival: before when its payload cannot be there. For wires that move alone.
  virtual Clock::time_point earliest(const Arrival&) const { return Clock::time_point::max(); }

  /// Finishes what is done; never waits. True where something was.
  virtual bool poll() = 0;
  /// True once all that was sent has left, and all that was agreed on has come.
  virtual bool quiet() const = 0;
  /// For a moment, between two polls of a thread that waits.
  virtual void pause() const;
  /// Sleeps until there is reason to poll, the descriptor `alarm` is readable (none: -1) or `until`
  /// has come; seldom less. Called by any thread, whoever calls the wire meanwhile.
  virtual void rest(int /*alarm*/, Clock::time_point /*until*/) const { pause(); }

  /// False once the network is gone: then nothing may be called that moves bytes.
  virtual bool running() const { return true; }
  /// Where the network lets several threads in, one at a time, the caller is the one from now on.
  virtual void note_use() {}
  /// Whether the calling thread may move bytes now.
  virtual bool right_thread() const { return true; }
  /// Notes the use. Throws InvalidArgument where the network is gone or keeps this thread out.
  virtual void check_thread() {}
  /// Whether a peer sees by itself when this rank goes: a connection that ends. Of a fault of
  /// others it is told before that, so that it does not take the first who goes for the cause.
  virtual bool shows_its_end_to(int /*peer*/) const { return false; }
  /// Nothing that comes is wanted any more, after a fault: the network may now wait for the dead.
  virtual void note_poisoned() {}

  Shared& shared() const { return *shared_; }

 protected:
  explicit Wire(std::shared_ptr<Shared> shared);
  /// Memory for payloads, 64-byte aligned. Any thread may take it.
  Block take_block(std::size_t bytes) const;

 private:
  std::shared_ptr<Shared> shared_;
};

/// The transport of a wire's rank. Starts the wire, and owns it.
std::unique_ptr<Transport> make_transport(std::unique_ptr<Wire> wire);

}  // namespace tersor
