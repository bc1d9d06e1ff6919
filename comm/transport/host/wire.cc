// Implements <tersor/network.h> except blocks (block_pool.cc) and make_transport
// (host_transport.cc).
#include <sched.h>
#include <tersor/error.h>
#include <tersor/network.h>

#include <string>

#include "comm/transport/host/head.h"
#include "comm/transport/host/shared_lock.h"

namespace tersor {

void MessageHead::check(int peer) const {
  const host::Envelope ours, theirs = host::head_of(*this).envelope;
  if (theirs.magic == ours.magic && theirs.version == ours.version) return;
  throw TransportError("rank " + std::to_string(peer) +
                       " uses another version of the transport: all ranks need the same format "
                       "version of Tersor");
}

std::size_t MessageHead::payload_bytes() const {
  const host::Head head = host::head_of(*this);
  return head.type == host::MessageType::kAnnounced ? 0 : head.envelope.bytes;
}

bool MessageHead::is_fault() const {
  return host::head_of(*this).type == host::MessageType::kFault;
}

bool MessageHead::is_goodbye() const {
  const host::Head head = host::head_of(*this);
  return head.type == host::MessageType::kLeave && head.part == 1;
}

Wire::Wire() : Wire(std::make_shared<Shared>()) {}

Wire::Wire(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

Wire::~Wire() = default;

Block Wire::take_block(std::size_t bytes) const { return shared_->pools.host().take(bytes); }

void Wire::pause() const { sched_yield(); }

}  // namespace tersor
