// What collectives check before anything is prepared. All throw InvalidArgument.
#pragma once

#include "comm/collectives/prepared.h"

#include <tersor/collectives.h>
#include <tersor/transport.h>

#include <string_view>

namespace tersor {

/// That a transport takes such values; `name` is for messages ("the gradient").
void check_span(const Transport& transport, const ConstValueSpan& span, std::string_view name);
/// That two are of one dtype and lie in one memory.
void check_alike(const ConstValueSpan& one, std::string_view name, const ConstValueSpan& other,
                 std::string_view other_name);
/// The same of a shard and the whole, which is one for each rank.
void check_shards(const ConstValueSpan& all, const ConstValueSpan& shard, int ranks);
void check_rooted(const Transport& transport, int root, const CollectiveOptions& options,
                  std::string_view operation);
void refuse_feedback(const CollectiveOptions& options, std::string_view operation);

/// What a call with such a slot depends on.
Key make_key(const Transport& transport, Kind kind, const ConstValueSpan& slot,
             const CollectiveOptions& options, int root = 0);

}  // namespace tersor
