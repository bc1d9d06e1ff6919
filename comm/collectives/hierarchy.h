// Hosts of a hierarchical collective, and what its ranks agree about.
#pragma once

#include "comm/collectives/context.h"
#include "comm/collectives/fields.h"
#include "comm/collectives/hosts.h"

#include <tersor/transport.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace tersor {

/// Whether the owners of a shard may have to add bare values, for which they need a split.
enum class Between : std::uint8_t { kFrames, kAny };

/// Groups, the codec within a host, and the split of the transport on which the owners of a shard
/// add bare values. Made once and used for all exchanges.
class Hierarchy {
 public:
  /// All ranks call it with equal groups, of which there are at least two hosts.
  Hierarchy(Transport& transport, HostGroups groups, std::shared_ptr<const Codec> codec,
            Between between = Between::kAny);

  const HostGroups& groups() const { return groups_; }
  const Codec& codec() const { return *codec_; }
  Between between() const { return between_; }
  /// The owners of this rank's shard; null where it has none, or they add no bare values.
  Transport* owners() const { return owners_.get(); }

 private:
  HostGroups groups_;
  std::shared_ptr<const Codec> codec_;
  Between between_;
  std::unique_ptr<Transport> owners_;
};

/// The hierarchy that a slot goes by, of those that there are: none, where it is a reduce-scatter
/// and hosts have unequal numbers of ranks.
const Hierarchy* hierarchy_of(const Slot& slot, const Hierarchy* hierarchy);

/// What this rank sent by a transport, and by the split of a hierarchy (may be null).
std::uint64_t sent_bytes(const Transport& transport, const Hierarchy* hierarchy);

/// Part of the signature of whatever goes through such a hierarchy.
void add_groups(Fields& fields, const HostGroups& groups, std::string_view host_codec);

/// The same of a grid; one dimension of all ranks adds nothing.
void add_grid(Fields& fields, const Grid& grid);

/// Throws InvalidArgument where hosts have unequal numbers of ranks; `what` goes by them.
void check_even(const HostGroups& groups, std::string_view what);

/// Throws TransportError on all ranks where their signatures differ: before splits are made of
/// groups that do not fit each other.
void agree(Transport& transport, const ExchangeContext& context);

/// The codec within a host of a spec. Throws InvalidArgument for one that is neither none nor bf16.
std::shared_ptr<const Codec> make_host_codec(std::string_view spec);

}  // namespace tersor
