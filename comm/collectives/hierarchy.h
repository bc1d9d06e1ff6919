// The hosts of a hierarchical collective, and the agreement of ranks about them.
#pragma once

#include "comm/collectives/context.h"
#include "comm/collectives/hosts.h"

#include <tersor/transport.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace tersor {

/// kAny: the owners of a host shard may add raw values and need a split.
enum class InterHost : std::uint8_t { kFrames, kAny };

/// The host groups, the codec within hosts, and the split for adding raw values between the owners
/// of a host shard. Created once and used for all exchanges.
class Hierarchy {
 public:
  /// Collective, with equal groups on all ranks and at least two hosts.
  Hierarchy(Transport& transport, HostGroups groups, std::shared_ptr<const Codec> codec,
            InterHost inter_host = InterHost::kAny);

  const HostGroups& groups() const { return groups_; }
  const Codec& codec() const { return *codec_; }
  InterHost inter_host() const { return inter_host_; }
  /// The owners of this rank's host shard. Null if the rank owns none or if no raw values are
  /// added.
  Transport* owners() const { return owners_.get(); }

 private:
  HostGroups groups_;
  std::shared_ptr<const Codec> codec_;
  InterHost inter_host_;
  std::unique_ptr<Transport> owners_;
};

/// The hosts of a hierarchical call.
struct Hosts {
  std::shared_ptr<const Codec> codec;  ///< within a host
  bool single_host = false;  ///< True for a single host, whose codec then applies to all ranks
  std::optional<HostGroups> groups;  ///< empty for a single host and for hosts with one rank each
};

/// The named hosts, by default the hosts known to the transport. See CollectiveOptions for codec
/// and error_growth. Throws InvalidArgumentError for a codec unsuitable within hosts.
Hosts find_hosts(const Transport& transport, const std::vector<int>& named, std::string_view codec,
                 double error_growth);

/// The transport for adding raw values: the whole transport, or the split of the host shard's
/// owners.
Transport* sum_transport_of(const ExchangeContext& context);

/// The bytes this rank sent through the transport and the split.
std::uint64_t sent_bytes(const ExchangeContext& context);

/// Adds the options of a hierarchy.
void add_groups(Agreement& agreement, const HostGroups& groups, std::string_view host_codec);

/// Adds the options of a grid. A single dimension of all ranks adds nothing.
void add_grid(Agreement& agreement, const Grid& grid);

/// Throws InvalidArgumentError if hosts have unequal numbers of ranks. `what` names the operation.
void check_even(const HostGroups& groups, std::string_view what);

/// Throws TransportError on all ranks if signatures differ. Called before splitting, because splits
/// of mismatched groups would fail.
void check_agreement(const ExchangeContext& context);

}  // namespace tersor
