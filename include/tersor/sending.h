// Point-to-point messages of encoded values between two ranks, e.g. between pipeline stages. No
// other rank takes part.
#pragma once

#include <tersor/collectives.h>
#include <tersor/span.h>
#include <tersor/stream.h>
#include <tersor/transport.h>

#include <memory>

namespace tersor {

/// One end of a message in transfer. Destroy it before its transport. Only the transport's thread
/// may use it. The destructor waits until the message is done, unless an exception unwinds.
class Sending {
 public:
  Sending(Sending&&) noexcept;
  Sending& operator=(Sending&&) noexcept;
  ~Sending();

  /// True once the sent bytes have left, or the received values are decoded. Never waits. Throws
  /// TransportError, or WireError if the message is damaged. The values are then undefined and the
  /// transport is aborted.
  bool test();
  /// Blocks the calling thread until the message is done; on a device, until all work is queued.
  /// Throws as `test`.
  void wait();

 private:
  struct State;
  explicit Sending(std::unique_ptr<State> state);
  friend Sending send(Transport&, ConstValueSpan, int, const CollectiveOptions&, StreamView);
  friend Sending receive(Transport&, ValueSpan, int, const CollectiveOptions&, StreamView);

  std::unique_ptr<State> state_;
};

/// Encodes `values` for rank `peer`. The peer must call `receive` with the same count, dtype and
/// options. The values may change after the return; on a device, in work queued later on `stream`.
/// On hosts, long values are sent in several messages, so encoding and sending overlap. Messages
/// between two ranks arrive in the order of sending.
///
/// On hosts, about 16 MiB may be sent before the peer calls `receive`. Beyond this limit, the
/// Sending is done only after the peer calls `receive`. Two ranks that send more to each other must
/// therefore both call `send` before either waits.
///
/// Used options: codec, chunk_count, parameter, seed, step, checksum, timeout and threads. Pointers
/// in the options must outlive the Sending. Throws InvalidArgumentError and changes nothing for
/// "+ef", for a `peer` that is not another rank, and for device memory over a transport that queues
/// (NCCL). There, all ranks take part in every operation; use all_to_all, also for a single
/// destination.
Sending send(Transport& transport, ConstValueSpan values, int peer,
             const CollectiveOptions& options = {}, StreamView stream = {});

/// Receives the values of a `send` of rank `peer`. `values` must outlive the Sending and are valid
/// once it is done. Throws as `send`.
Sending receive(Transport& transport, ValueSpan values, int peer,
                const CollectiveOptions& options = {}, StreamView stream = {});

}  // namespace tersor
