// See hierarchy.h.
#include "comm/collectives/hierarchy.h"

#include <string>
#include <utility>

namespace tersor {
namespace {

std::unique_ptr<Transport> split_owners(Transport& transport, const HostGroups& groups) {
  if (!groups.encodes(transport.rank())) return nullptr;
  return transport.split(groups.owners(groups.place(transport.rank())));
}

void bind_transport(ExchangeContext& context, const ExchangeContext& whole, Transport& transport) {
  context = whole;
  context.transport = &transport;
  context.rank = transport.rank();
  context.ranks = transport.ranks();
  context.overflows = 0;
  for (SlotCounters& counters : context.counters) counters = {};
}

void move_counts(ExchangeContext& from, ExchangeContext& to) {
  to.overflows += std::exchange(from.overflows, 0);
  for (std::size_t slot = 0; slot < from.counters.size(); ++slot) {
    const SlotCounters counted = std::exchange(from.counters[slot], {});
    to.counters[slot].sent_bytes += counted.sent_bytes;
    to.counters[slot].encode_seconds += counted.encode_seconds;
    to.counters[slot].decode_seconds += counted.decode_seconds;
  }
}

}  // namespace

Hierarchy::Hierarchy(Transport& transport, HostGroups groups, std::shared_ptr<const Codec> codec)
    : groups_(std::move(groups)),
      codec_(std::move(codec)),
      within_transport_(transport.split(groups_.neighbours(transport.rank()))),
      between_transport_(split_owners(transport, groups_)) {}

// A mean is one of all ranks: it is taken where the hosts' sums meet, and nowhere else.
void Hierarchy::bind(const ExchangeContext& whole) {
  bind_transport(within_, whole, *within_transport_);
  within_.factor = 1.0f;
  if (encodes()) bind_transport(between_, whole, *between_transport_);
}

void Hierarchy::collect(ExchangeContext& whole) {
  move_counts(within_, whole);
  move_counts(between_, whole);
}

std::uint64_t Hierarchy::sent_bytes() const {
  const std::uint64_t within = within_transport_->counters().sent_bytes;
  return encodes() ? within + between_transport_->counters().sent_bytes : within;
}

void add_groups(Signature& signature, const HostGroups& groups, std::string_view host_codec) {
  signature.add(host_codec);
  for (const int host : groups.numbers()) signature.add(static_cast<std::uint32_t>(host));
}

void agree(Transport& transport, const ExchangeContext& context) {
  transport
      .barrier({.name = context.name,
                .signature = context.signature,
                .tag = transport.reserve_tags(1),
                .timeout = context.timeout})
      .wait_synchronize();
}

std::shared_ptr<const Codec> make_host_codec(std::string_view spec) {
  auto codec = make_codec(spec);
  const std::string& name = codec->spec().name;
  if (codec->has_feedback() || (name != "none" && name != "bf16"))
    throw InvalidArgument("within a host values travel as none or bf16, not as " +
                          codec->spec().text());
  return codec;
}

}  // namespace tersor
