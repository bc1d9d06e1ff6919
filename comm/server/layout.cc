#include "comm/server/layout.h"

#include <tersor/error.h>

#include "comm/collectives/choose.h"
#include "comm/collectives/parts.h"

#include <algorithm>
#include <string>

namespace tersor {
namespace {

void add_options(Agreement& agreement, const ServerLayout& layout, const ServerOptions& options) {
  agreement.add("push", layout.push->spec().text()).add("pull", layout.pull->spec().text());
  agreement.add("staleness", options.staleness)
      .add("reduction", options.reduction, reduction_names())
      .add("checksum", options.checksum, {"on", "off"})
      .add("model", options.model);
  for (const int worker : options.workers) agreement.add("a worker", worker);
}

}  // namespace

ServerLayout server_layout(std::span<const std::size_t> counts, const ServerOptions& options,
                           int server, int servers) {
  if (server < 0 || server >= servers)
    throw InvalidArgumentError("server is " + std::to_string(server) + ": give 0 to " +
                               std::to_string(servers - 1));
  ServerLayout layout{.push = make_codec(options.push), .pull = make_codec(options.pull)};
  if (layout.pull->has_feedback())
    throw InvalidArgumentError("pull is \"" + options.pull +
                               "\": leave out +ef, because a server sends all weights");
  const std::size_t unit = std::max(layout.push->traits().unit, layout.pull->traits().unit);
  Agreement& agreement = layout.agreement;
  agreement.add("server", server).add("servers", servers);
  add_options(agreement, layout, options);
  for (std::uint32_t parameter = 0; parameter < counts.size(); ++parameter) {
    const Range own = owned_range(counts[parameter], server, servers, parameter, unit);
    layout.segments.push_back(
        {.count = own.count, .parameter = parameter, .first_index = own.first});
    agreement.begin("parameter " + std::to_string(parameter))
        .add("count", static_cast<std::uint64_t>(counts[parameter]));
  }
  layout.push_plan = plan_local(*layout.push, layout.segments, "push");
  layout.pull_plan = plan_local(*layout.pull, layout.segments, "pull");
  agreement.end();
  return layout;
}

}  // namespace tersor
