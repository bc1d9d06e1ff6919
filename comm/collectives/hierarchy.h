// The transports of a hierarchical allreduce, and what its exchanges have for context.
#pragma once

#include "comm/collectives/context.h"
#include "comm/collectives/hosts.h"

#include <tersor/transport.h>
#include <tersor/wire.h>

#include <chrono>
#include <cstdint>
#include <memory>

namespace tersor {

/// Splits of one transport: this rank's neighbours, and the owners of its shard. Made once and used
/// for all exchanges.
class Hierarchy {
 public:
  /// All ranks call it with equal groups, of which there are at least two hosts. The codec is that
  /// within a host.
  Hierarchy(Transport& transport, HostGroups groups, std::shared_ptr<const Codec> codec);

  const HostGroups& groups() const { return groups_; }
  const Codec& codec() const { return *codec_; }
  /// The context among neighbours, and among the owners of this rank's shard (where it has one).
  ExchangeContext& within() { return within_; }
  ExchangeContext& between() { return between_; }
  bool encodes() const { return between_transport_ != nullptr; }

  /// Takes over all that a whole exchange is called with; clears what was counted.
  void bind(const ExchangeContext& whole);
  /// Adds what was counted since `bind` or the last `collect` to the whole.
  void collect(ExchangeContext& whole);
  /// Since the splits were made.
  std::uint64_t sent_bytes() const;

 private:
  HostGroups groups_;
  std::shared_ptr<const Codec> codec_;
  std::unique_ptr<Transport> within_transport_;
  std::unique_ptr<Transport> between_transport_;  ///< null: this rank owns no shard
  ExchangeContext within_;
  ExchangeContext between_;
};

/// Part of the signature of whatever goes through such a hierarchy.
void add_groups(Signature& signature, const HostGroups& groups, std::string_view host_codec);

/// Throws TransportError on all ranks where their signatures differ: before splits are made of
/// groups that do not fit each other.
void agree(Transport& transport, const ExchangeContext& context);

/// The codec within a host of a spec. Throws InvalidArgument for one that is neither none nor bf16.
std::shared_ptr<const Codec> make_host_codec(std::string_view spec);

}  // namespace tersor
