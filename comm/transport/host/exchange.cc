#include "comm/transport/host/exchange.h"

namespace tersor::host {

HostExchange::HostExchange(const Start& start, std::size_t receives)
    : HostTransfer(start), incoming_(receives) {
  outgoing_.reserve(receives);
  initialize(batch_, 0);
  batch_.takes_all = operation().takes_all;
}

void HostExchange::add_receive(int peer, std::size_t min_bytes, std::size_t capacity) {
  Incoming& incoming = incoming_[added_++];
  incoming.peer = peer;
  incoming.min_bytes = min_bytes;
  incoming.capacity = capacity;
}

void HostExchange::add_all(ConstByteSpan payload, std::size_t min_bytes, std::size_t capacity) {
  const int ranks = channel().ranks();
  for (int distance = 1; distance < ranks; ++distance) {
    const int peer = (channel().rank() + distance) % ranks;
    add_send(peer, payload);
    add_receive(peer, min_bytes, capacity);
  }
}

void HostExchange::begin() {
  batch_.outgoing = outgoing_;
  batch_.incoming = incoming_;
  channel().post(batch_);
}

std::vector<int> HostExchange::missing() const {
  std::vector<int> ranks;
  for (const Incoming& incoming : incoming_) {
    if (incoming.arrived.load(std::memory_order_acquire)) continue;
    if (incoming.peer != kAnyRank) {
      ranks.push_back(incoming.peer);
      continue;
    }
    for (int rank = 0; rank < channel().ranks(); ++rank)
      if (rank != channel().rank()) ranks.push_back(rank);
  }
  if (!ranks.empty()) return ranks;
  ranks = channel().engine().lock()->delivery.unsent(batch_);
  if (!ranks.empty()) return ranks;
  for (const Outgoing& outgoing : outgoing_) ranks.push_back(outgoing.peer);
  return ranks;
}

ConstByteSpan HostExchange::payload_of(int rank) const {
  for (const Incoming& incoming : incoming_)
    if (incoming.source == rank) return incoming.payload.bytes();
  return {};
}

ConstByteSpan HostExchange::received(int rank) const {
  require_done();
  return payload_of(rank);
}

int HostExchange::source() const {
  require_done();
  if (incoming_.size() != 1) return HostTransfer::source();
  return incoming_.front().source;
}

}  // namespace tersor::host
