// Implements host_transport.h: checks arguments and makes transfers of them.
#include "comm/transport/host/host_transport.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "comm/transport/host/exchange.h"
#include "comm/transport/host/ring.h"
#include "kernels/common/elementwise.h"

namespace tersor::host {
namespace {

[[noreturn]] void refuse(const Operation& operation, const std::string& why) {
  throw InvalidArgument(std::string(operation.name) + ": " + why);
}

Envelope envelope_of(const Operation& operation, Call call) {
  Envelope envelope;
  envelope.call = call;
  envelope.signature = operation.signature;
  return envelope;
}

void check_entries(const Operation& operation, std::size_t entries, int ranks) {
  if (entries != static_cast<std::size_t>(ranks))
    refuse(operation,
           std::to_string(entries) + " entries given for " + std::to_string(ranks) + " ranks");
}

std::unique_ptr<Exchange> make_exchange(const std::shared_ptr<Channel>& channel,
                                        const Operation& operation, Call call,
                                        std::size_t receives) {
  return std::make_unique<Exchange>(channel, operation, envelope_of(operation, call), receives);
}

/// Calls `visit(rank)` for every rank but this one, the next rank first: so that not all ranks send
/// to the same one at the same time.
template <typename Visitor>
void for_each_peer(const Channel& channel, Visitor&& visit) {
  for (int distance = 1; distance < channel.ranks(); ++distance)
    visit((channel.rank() + distance) % channel.ranks());
}

/// The dtype of all parts that are not empty. Throws InvalidArgument for more than one, or for
/// device memory.
Dtype common_dtype(const Operation& operation, std::span<const ValueSpan> parts) {
  const auto first =
      std::find_if(parts.begin(), parts.end(), [](const auto& part) { return !part.empty(); });
  const Dtype dtype = first == parts.end() ? Dtype::kF32 : first->dtype();
  for (const ValueSpan& part : parts) {
    if (part.empty()) continue;
    if (part.dtype() != dtype)
      refuse(operation, "parts of " + std::string(dtype_name(dtype)) + " and of " +
                            std::string(dtype_name(part.dtype())));
    if (part.memory() != Memory::kHost) refuse(operation, "this transport takes host memory only");
  }
  return dtype;
}

std::size_t count_of(std::span<const ValueSpan> parts) {
  return std::accumulate(
      parts.begin(), parts.end(), std::size_t{0},
      [](std::size_t count, const ValueSpan& part) { return count + part.count(); });
}

void check_members(std::span<const int> members, int rank, int ranks) {
  const bool ascending =
      std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  if (members.empty() || !ascending || members.front() < 0 || members.back() >= ranks)
    throw InvalidArgument("split: members must be ascending ranks below " + std::to_string(ranks));
  if (!std::binary_search(members.begin(), members.end(), rank))
    throw InvalidArgument("split: rank " + std::to_string(rank) + " is not among the members");
}

}  // namespace

HostTransport::HostTransport(std::shared_ptr<Postman> postman, const TransportTraits& traits)
    : channel_(std::make_shared<Channel>(std::move(postman))), traits_(traits) {}

HostTransport::~HostTransport() { channel_->postman().leave(); }

std::vector<int> HostTransport::hosts() const { return channel_->postman().hosts(); }

std::uint32_t HostTransport::reserve_tags(std::uint32_t count) {
  const std::uint32_t first = next_tag_;
  next_tag_ += count;
  return first;
}

Handle HostTransport::all_to_all(const Operation& operation, std::span<const ConstByteSpan> sends,
                                 std::span<const std::size_t> capacities) {
  check_entries(operation, sends.size(), ranks());
  check_entries(operation, capacities.size(), ranks());
  auto exchange = make_exchange(channel_, operation, Call::kAllToAll, sends.size() - 1);
  for_each_peer(*channel_, [&](int peer) {
    exchange->add_send(peer, sends[static_cast<std::size_t>(peer)]);
    exchange->add_receive(peer, 0, capacities[static_cast<std::size_t>(peer)]);
  });
  return channel_->start(std::move(exchange));
}

Handle HostTransport::all_gather(const Operation& operation, ConstByteSpan send,
                                 std::size_t capacity) {
  auto exchange =
      make_exchange(channel_, operation, Call::kAllGather, static_cast<std::size_t>(ranks()) - 1);
  for_each_peer(*channel_, [&](int peer) {
    exchange->add_send(peer, send);
    exchange->add_receive(peer, 0, capacity);
  });
  return channel_->start(std::move(exchange));
}

Handle HostTransport::barrier(const Operation& operation) {
  auto exchange =
      make_exchange(channel_, operation, Call::kBarrier, static_cast<std::size_t>(ranks()) - 1);
  for_each_peer(*channel_, [&](int peer) {
    exchange->add_send(peer, {});
    exchange->add_receive(peer, 0, 0);
  });
  return channel_->start(std::move(exchange));
}

void HostTransport::check_peer(const Operation& operation, int peer) const {
  if (peer < 0 || peer >= ranks() || peer == rank())
    refuse(operation, "rank " + std::to_string(peer) + " is not a peer of rank " +
                          std::to_string(rank()) + " of " + std::to_string(ranks()));
}

Handle HostTransport::send(const Operation& operation, int peer, ConstByteSpan bytes) {
  check_peer(operation, peer);
  auto exchange = make_exchange(channel_, operation, Call::kSend, 0);
  exchange->add_send(peer, bytes);
  return channel_->start(std::move(exchange));
}

Handle HostTransport::receive(const Operation& operation, int peer, std::size_t capacity) {
  check_peer(operation, peer);
  auto exchange = make_exchange(channel_, operation, Call::kSend, 1);
  exchange->add_receive(peer, 0, capacity);
  return channel_->start(std::move(exchange));
}

Handle HostTransport::receive_any(const Operation& operation, std::size_t capacity) {
  if (!traits_.receive_any) refuse(operation, "this transport has no receive_any");
  if (ranks() == 1) refuse(operation, "a rank alone has nobody to receive from");
  auto exchange = make_exchange(channel_, operation, Call::kSend, 1);
  exchange->add_receive(kAnyRank, 0, capacity);
  return channel_->start(std::move(exchange));
}

Handle HostTransport::sum(const Operation& operation, std::span<const ValueSpan> parts) {
  return reduce(operation, parts, Call::kSum);
}

Handle HostTransport::maximum(const Operation& operation, std::span<const ValueSpan> parts) {
  return reduce(operation, parts, Call::kMaximum);
}

Handle HostTransport::reduce(const Operation& operation, std::span<const ValueSpan> parts,
                             Call call) {
  check_entries(operation, parts.size(), ranks());
  Envelope envelope = envelope_of(operation, call);
  envelope.dtype = common_dtype(operation, parts);
  envelope.count = count_of(parts);
  std::vector<ValueSpan> typed(parts.begin(), parts.end());
  for (ValueSpan& part : typed)
    if (part.empty()) part = ValueSpan(nullptr, 0, envelope.dtype);
  return channel_->start(
      make_reduction(channel_, operation,
                     {.parts = typed,
                      .combine = call == Call::kSum ? kernels::add_values : kernels::maximum_values,
                      .envelope = envelope}));
}

std::unique_ptr<Transport> HostTransport::channel() {
  std::vector<int> everybody(static_cast<std::size_t>(ranks()));
  std::iota(everybody.begin(), everybody.end(), 0);
  return join(everybody);
}

std::unique_ptr<Transport> HostTransport::split(std::span<const int> members) {
  check_members(members, rank(), ranks());
  return join(members);
}

std::unique_ptr<Transport> HostTransport::join(std::span<const int> members) {
  channel_->check("channel");
  return std::make_unique<HostTransport>(channel_->postman().join(members), traits_);
}

void HostTransport::poison(std::string_view cause) {
  channel_->postman().raise(channel_->postman().name(rank()) + " gave up: " + std::string(cause));
}

}  // namespace tersor::host
