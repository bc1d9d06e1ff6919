// What a world of processes needs from the network below it: heads with payloads from one process
// to another, in order. MPI is one; whatever moves bytes between processes can be another.
#pragma once

#include <tersor/span.h>
#include <tersor/transport.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "comm/transport/host/postman.h"
#include "comm/transport/processes/head.h"

namespace tersor::processes {

/// A head that came, with its payload where `whole`; else that is received when asked for.
struct Arrival {
  Head head;
  host::Block payload;
  int peer = 0;
  bool whole = true;
};

/// A message, or the rest of one, under way. Owns the bytes until they have left or have come.
struct Job {
  host::Block memory;
  std::shared_ptr<const void> keep_alive;
  host::Batch* batch = nullptr;        ///< that counts it, or null
  std::function<void(Job& job)> done;  ///< may be empty; called by `Wire::poll`
  std::size_t open = 0;                ///< parts that are under way
};

/// What a wire is able to do: asked instead of its type.
struct WireTraits {
  bool any_thread = true;    ///< may be called from any thread (one at a time)
  bool moves_alone = false;  ///< things move while nobody polls, and `Events::changed` tells
  /// From how many bytes on payloads may lie on a device.
  std::size_t least_device_bytes = std::numeric_limits<std::size_t>::max();
};

/// Whether all other processes said goodbye before this one ends.
enum class Parting { kAgreed, kAlone };

/// One process's end of all its connections. Knows no channel. One thread at a time. Errors of the
/// network are TransportErrors.
class Wire {
 public:
  struct Events {
    std::function<void(Arrival arrival)> take;  ///< called by `poll` for each head, in order
    std::function<void()> changed;  ///< called by a thread of the wire: there is reason to poll
  };

  virtual ~Wire() = default;

  virtual WireTraits traits() const = 0;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// For each rank a number that ranks of one host share.
  virtual std::vector<int> host_names() const = 0;
  /// Bytes that travel for a payload, heads included.
  virtual std::size_t wire_bytes(std::size_t payload_bytes) const {
    return sizeof(Head) + payload_bytes;
  }

  /// Takes every message from now on, into blocks of the pool. Called once, before all that
  /// follows.
  virtual void start(host::BlockPool& pool, Events events) = 0;
  /// Gives back what the network lets go of. True where that is all: nothing is read, written or
  /// called any more. After that messages are dropped, and `poll` finds nothing. Throws nothing.
  virtual bool end(Parting parting) = 0;

  /// Sends a copy of the payload; the job has left when it is no more `open`.
  virtual std::shared_ptr<const Job> send(int peer, Head head, ConstByteSpan payload) = 0;
  /// Sends the bytes of a block, which is kept until they have left.
  virtual std::shared_ptr<const Job> send_block(int peer, Head head, host::Block payload) = 0;
  /// Sends the bytes at `payload`, which `job.keep_alive` owns; a short one is copied and the job
  /// forgotten. Returns whether the job is under way.
  virtual bool send_from(int peer, Head head, ConstByteSpan payload,
                         const std::shared_ptr<Job>& job) = 0;
  /// Receives the payload of an arrival that is not whole.
  virtual void receive_rest(const Arrival& arrival, ByteSpan into,
                            const std::shared_ptr<Job>& job) = 0;

  /// Finishes what is done. True where something was.
  virtual bool poll() = 0;
  /// Nobody counts on the batch any more.
  virtual void forget(const host::Batch& batch) = 0;
  /// True once all that was sent has left, and all that was agreed on has come.
  virtual bool quiet() const = 0;
  /// For a moment, between two polls of a thread that waits without a bell.
  virtual void pause() const = 0;

  /// False once the network is gone: then nothing may be called that moves bytes.
  virtual bool running() const { return true; }
  /// Where the network lets several threads in, one at a time, the caller is the one from now on.
  virtual void note_use() {}
  /// Whether the calling thread may move bytes now.
  virtual bool right_thread() const { return true; }
  /// Notes the use. Throws InvalidArgument where the network is gone or keeps this thread out.
  virtual void check_thread() {}
  /// A fault was found: the network may now wait for the dead.
  virtual void note_poisoned() {}
};

/// Throws TransportError where a head was not written by this version of the transport.
void check_protocol(const Head& head, int peer);
[[noreturn]] void refuse_protocol(int peer);

}  // namespace tersor::processes
