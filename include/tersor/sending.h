// Encoded values from one rank to another, of which no other rank knows: what stages of a pipeline
// hand on.
#pragma once

#include <tersor/collectives.h>
#include <tersor/span.h>
#include <tersor/stream.h>
#include <tersor/transport.h>

#include <memory>

namespace tersor {

/// One end of a message under way. Goes before its transport, and is used by the transport's
/// thread. Where it goes before it is done it waits first, unless an error unwinds.
class Sending {
 public:
  Sending(Sending&&) noexcept;
  Sending& operator=(Sending&&) noexcept;
  ~Sending();

  /// True once done: what was sent has left, what came is decoded. Never waits. Throws
  /// TransportError, or WireError where what came is damaged (values undefined): the transport is
  /// poisoned then.
  bool test();
  /// Blocks the calling thread until done. On a device: until all is queued. Throws as `test`.
  void wait();

 private:
  struct State;
  explicit Sending(std::unique_ptr<State> state);
  friend Sending send(Transport&, ConstValueSpan, int, const CollectiveOptions&, StreamView);
  friend Sending receive(Transport&, ValueSpan, int, const CollectiveOptions&, StreamView);

  std::unique_ptr<State> state_;
};

/// Encodes `values` for `peer`, which calls `receive` for as many of the same dtype with equal
/// options. Values may change as soon as it returns (on a device: in what is queued later on
/// `stream`). On hosts many values go in several messages, the first while others are encoded.
/// Messages between two ranks are received in the order in which they were sent. On hosts some 16
/// MiB may go ahead of `receive`; beyond that the Sending is done once the peer asks for it, so
/// that two ranks which both send more begin both before they wait. Of the options codec,
/// chunk_count, parameter, seed, step, checksum, timeout and threads count, and outlive the Sending
/// where they are pointers. Throws InvalidArgument (nothing changed) for "+ef", a peer that is no
/// other rank, and device memory over a transport that queues (NCCL), where all ranks take part in
/// everything: there all_to_all sends to one rank too.
Sending send(Transport& transport, ConstValueSpan values, int peer,
             const CollectiveOptions& options = {}, StreamView stream = {});

/// The other end: `values`, which outlive the Sending, are those of `peer` when it is done.
Sending receive(Transport& transport, ValueSpan values, int peer,
                const CollectiveOptions& options = {}, StreamView stream = {});

}  // namespace tersor
