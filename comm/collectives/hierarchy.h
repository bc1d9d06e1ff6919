// Hosts of a hierarchical collective, and what its ranks agree about.
#pragma once

#include "comm/collectives/context.h"
#include "comm/collectives/fields.h"
#include "comm/collectives/hosts.h"

#include <tersor/transport.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

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

/// The hosts that ranks are to go by.
struct Hosts {
  std::shared_ptr<const Codec> codec;  ///< within a host
  bool is_one = false;                 ///< so that the codec is that of all
  std::optional<HostGroups> groups;    ///< none for one host, nor for hosts of one rank each
};

/// Hosts as they are named, or where none are, as the transport found them; of codec and
/// error_growth: CollectiveOptions. Throws InvalidArgument for a codec that is none of a host's.
Hosts find_hosts(const Transport& transport, const std::vector<int>& named, std::string_view codec,
                 double error_growth);

/// The hierarchy that a slot goes by; null where there is none, or where it is a reduce-scatter and
/// hosts have unequal numbers of ranks.
const Hierarchy* hierarchy_of(const ExchangeContext& context, const Slot& slot);

/// How many ranks exchange a slot's encoded values: all, or the owners of a shard.
int encoding_ranks(const ExchangeContext& context, const Slot& slot);

/// What a rank encodes of a slot that is added, and what it owns in a two-shot allreduce of it.
StateRanges state_ranges(const ExchangeContext& context, const Slot& slot, int rank);

/// Who adds bare values: the transport, or its split of the owners of this rank's shard.
Transport* adder_of(const ExchangeContext& context);

/// What this rank sent by the transport, and by that split.
std::uint64_t sent_bytes(const ExchangeContext& context);

/// Part of the signature of whatever goes through such a hierarchy.
void add_groups(Fields& fields, const HostGroups& groups, std::string_view host_codec);

/// The same of a grid; one dimension of all ranks adds nothing.
void add_grid(Fields& fields, const Grid& grid);

/// Throws InvalidArgument where hosts have unequal numbers of ranks; `what` goes by them.
void check_even(const HostGroups& groups, std::string_view what);

/// Throws TransportError on all ranks where their signatures differ: before splits are made of
/// groups that do not fit each other.
void agree(Transport& transport, const ExchangeContext& context);

}  // namespace tersor
