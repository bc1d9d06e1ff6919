// Implements model.h. Each chunk's *stages* are sums. `work` is the codec's time. During `wire`,
// the sender's link is busy. During `latency`, no part of the chunk is sent. `core` is core time
// for the sent bytes, contained in the wire's time if a chunk is alone.
#include "comm/tuning/model.h"

#include "comm/collectives/choose.h"
#include "comm/collectives/parts.h"
#include "comm/collectives/pipeline.h"
#include "comm/collectives/schedule.h"
#include "comm/transport/host/envelope.h"
#include "comm/transport/host/ring.h"
#include "comm/transport/host/steps.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tersor {
namespace {

constexpr double kEnvelope = sizeof(host::Envelope);

struct Stages {
  double work = 0, wire = 0, latency = 0, core = 0;
  double bytes = 0;  ///< sent

  double total() const { return work + wire + latency; }
};

/// The shape of an exchange: shards, and the number of chunks per shard.
struct Shape {
  double shard_count;  ///< values of a chunk in the longest shard
  double filled;       ///< mean fill of the shards, as a fraction of the longest
  double chunks;       ///< an integer, except for the last chunk's fraction
};

/// Each rank owns a shard of a native sum.
Grid grid_of(const CostQuery& query) {
  if (query.algorithm != Algorithm::kTwoShot) return Grid(query.ranks);
  if (query.dims.empty()) return Grid::standard(query.ranks, query.error_growth);
  return {query.dims, query.ranks};
}

Shape shape_of(const CostQuery& query) {
  const Grid grid = grid_of(query);
  const auto shards =
      static_cast<std::size_t>(query.algorithm == Algorithm::kOneShot ? 1 : grid.owners());
  const CodecTraits traits = query.codec->traits();
  const std::size_t units_of_shard = ceil_div(ceil_div(query.count, traits.unit), shards);
  const std::size_t longest = std::min(query.count, units_of_shard * traits.unit);
  const std::size_t step =
      shard_length(query.chunk_count, shards, traits.unit, grid.max_shards_of_chunk(), longest);
  const auto whole = static_cast<double>(longest), shard = static_cast<double>(step);
  if (traits.divisible && step < longest) return {shard, 1, whole / shard};
  return {whole, static_cast<double>(query.count) / (whole * static_cast<double>(shards)), 1};
}

Plan plan_of(const CostQuery& query, double count) {
  const Segment segment{.count = static_cast<std::size_t>(std::ceil(count))};
  return query.codec->plan({.segments = {&segment, 1},
                            .dtype = query.dtype,
                            .contributions = static_cast<std::size_t>(query.ranks)});
}

double frame_bytes_of(const CostQuery& query, double count) {
  return static_cast<double>(plan_of(query, count).frame_bytes);
}

/// The time a sender is busy with a message, including the envelope.
double message_seconds(const LinkFigures& link, double bytes) {
  return link.seconds_per_message + bytes * link.seconds_per_byte;
}

/// The slowest link of a ring over all ranks. Only one rank per host sends to the next host.
const LinkFigures& ring_link(const Network& network, int ranks) {
  return ranks > network.ranks_per_host ? network.link : network.local;
}

double ring_messages(double part_bytes) {
  using Tuning = host::RingTuning;
  const double bytes = std::clamp<double>(part_bytes / Tuning::kChunksPerPart,
                                          Tuning::kMinChunkBytes, Tuning::kMaxChunkBytes);
  return std::max(1.0, std::ceil(part_bytes / bytes));
}

// A chunk is forwarded after its arrival and addition. A step takes at least this time, and at
// least the time the link is busy with the step's messages.
Stages ring_sum(const CostFigures& figures, int ranks, double part_bytes) {
  const LinkFigures& link = ring_link(figures.network, ranks);
  const double messages = ring_messages(part_bytes), steps = 2.0 * (ranks - 1);
  const double bytes = part_bytes / messages;
  const double busy = message_seconds(link, bytes + kEnvelope);
  const double forwarding = link.latency + bytes * figures.add_seconds_per_byte;
  const double step = std::max(messages * busy, busy + forwarding);
  const double seconds = (steps - 1) * step + messages * busy + forwarding;
  const double wire = steps * messages * busy;
  const double sent = steps * messages * (bytes + kEnvelope);
  return {.wire = wire,
          .latency = seconds - wire,
          .core = sent * (link.core_seconds_per_byte + figures.add_seconds_per_byte / 2),
          .bytes = sent};
}

/// The longest shard of a kind.
struct Load {
  double count = 0;
  double bytes = 0;     ///< of the shard's message
  bool encoded = true;  ///< True if encoded; false for raw values within a host
  double filled = 1;    ///< mean fill of the shards: with few values, some are empty

  double seconds(std::size_t shards, const WorkCost& cost) const {
    return std::max(static_cast<double>(shards) * filled, 1.0) * cost.seconds(count);
  }
  double bytes_of(std::size_t shards) const {
    return std::max(static_cast<double>(shards) * filled, 1.0) * bytes;
  }
};

/// Messages of equal length, sent or received by rank 0 in a step.
struct Traffic {
  double local = 0;  ///< within the host
  double remote = 0;
  double bytes = 0;  ///< per message, including the envelope
};

/// Sums up the activity of rank 0 in the steps of a chunk. Host i holds the ranks from i *
/// ranks_per_host. All ranks of a host do the same at the same time and share the host's link.
class CostAccumulator {
 public:
  CostAccumulator(const CostQuery& query, const CostFigures& figures, std::vector<Load> shards)
      : query_(query), figures_(figures), shards_(std::move(shards)) {}

  Stages stages(const Schedule& schedule) {
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      if (schedule[i].is_native()) {
        add_sum(schedule[i]);
      } else {
        if (schedule[i].on_send == OnSend::kReduce) add_reduce(schedule[i - 1]);
        add_messages(schedule[i]);
      }
    }
    return stages_;
  }

  /// Adds rank 0's steps of a sum over `ranks` equally distant ranks.
  void add_steps(const host::HostSteps& steps, int ranks, double value_bytes) {
    const int stride = query_.ranks / ranks;
    for (const host::HostStep& step : steps) {
      const bool sends = step.to != host::HostStep::kNoRank;
      const std::size_t count = sends ? step.sent.count : step.received.count;
      const StepMessage message{stride * (sends ? step.to : step.from)};
      add_wire(traffic_of({message}, {.bytes = static_cast<double>(count) * value_bytes}), {});
      if (step.combines)
        stages_.latency +=
            static_cast<double>(step.received.count) * value_bytes * figures_.add_seconds_per_byte;
    }
  }

  const Stages& stages() const { return stages_; }

 private:
  void add_reduce(const Step& retained) {
    for (std::size_t i = 0; i < retained.receives.size(); ++i) {
      const StepMessage& message = retained.receives[i];
      const bool first = begins_shard(retained, i);
      stages_.work += shards_[message.shard].seconds(
          message.shards, first ? figures_.codec.reduce : figures_.codec.reduce_more);
    }
  }

  void add_messages(const Step& step) {
    const Load& load = shards_[step.first_shard];
    if (step.on_send == OnSend::kEncode && load.encoded)
      stages_.work += load.seconds(step.shard_count, figures_.codec.encode);
    add_wire(traffic_of(step.sends, load), traffic_of(step.receives, load));
    if (step.on_receive == OnReceive::kDecode) add_decode(step);
  }

  Traffic traffic_of(const std::vector<StepMessage>& messages, const Load& load) const {
    Traffic traffic;
    for (const StepMessage& message : messages) {
      if (message.peer == 0) continue;
      (message.peer < figures_.network.ranks_per_host ? traffic.local : traffic.remote) += 1;
      traffic.bytes = load.bytes_of(message.shards) + kEnvelope;
    }
    return traffic;
  }

  // Ranks use the local link and the host's link concurrently.
  double seconds_of(const Traffic& traffic) const {
    const LinkFigures &link = figures_.network.link, &local = figures_.network.local;
    const int sharing = std::min(figures_.network.ranks_per_host, query_.ranks);
    return std::max(traffic.remote * message_seconds(link, sharing * traffic.bytes),
                    traffic.local * message_seconds(local, traffic.bytes));
  }

  void add_wire(const Traffic& sent, const Traffic& received) {
    const LinkFigures &link = figures_.network.link, &local = figures_.network.local;
    stages_.wire += std::max(seconds_of(sent), seconds_of(received));
    const double remote = sent.remote + received.remote, in_host = sent.local + received.local;
    if (in_host + remote > 0) stages_.latency += remote > 0 ? link.latency : local.latency;
    const double all = (sent.local + sent.remote) * sent.bytes;
    stages_.core += all * link.core_seconds_per_byte;
    stages_.bytes += all;
  }

  static bool begins_shard(const Step& step, std::size_t message) {
    return message == 0 || step.receives[message - 1].shard != step.receives[message].shard;
  }

  // Decodes a payload of each shard and adds the other payloads.
  void add_decode(const Step& step) {
    for (std::size_t i = 0; i < step.receives.size(); ++i) {
      const Load& load = shards_[step.receives[i].shard];
      const bool first = begins_shard(step, i);
      if (load.encoded)
        stages_.work += load.seconds(step.receives[i].shards,
                                     first ? figures_.codec.decode : figures_.codec.decode_more);
      else if (!first)
        stages_.latency += load.bytes * figures_.add_seconds_per_byte;
    }
  }

  void add_sum(const Step& step) {
    const auto ranks = static_cast<int>(step.shard_count);
    const double count = shards_[step.first_shard].count;
    const Round round = plan_of(query_, count).rounds[step.round];
    const auto value_bytes = static_cast<double>(dtype_bytes(round.native_dtype));
    const double all = std::min(count * ranks, static_cast<double>(query_.count));
    const double bytes = all * value_bytes;
    const host::SumAlgorithm algorithm = algorithm_of_sum(ranks, bytes, value_bytes);
    if (algorithm == host::SumAlgorithm::kDirect)
      add_direct_sum(ranks, bytes);
    else if (algorithm == host::SumAlgorithm::kRing)
      add_ring(ranks, count * value_bytes);
    else
      add_steps(host::steps_of(algorithm, 0, ranks, static_cast<std::size_t>(all)), ranks,
                value_bytes);
    stages_.work += ranks * (figures_.codec.encode_native.seconds(count) +
                             figures_.codec.decode_native.seconds(count));
  }

  // The algorithm the ranks choose: a single gradient's order is free, but not between hosts.
  host::SumAlgorithm algorithm_of_sum(int ranks, double bytes, double value_bytes) const {
    const auto algorithm = [&](double of) {
      return host::sum_algorithm(ranks, query_.ranks <= figures_.network.ranks_per_host,
                                 static_cast<std::size_t>(of));
    };
    const double whole = static_cast<double>(query_.count) * value_bytes;
    if (ranks == query_.ranks && algorithm(whole) != host::SumAlgorithm::kRing)
      return algorithm(bytes);
    return bytes <= host::SumTuning::kMaxDirectBytes ? host::SumAlgorithm::kDirect
                                                     : host::SumAlgorithm::kRing;
  }

  // A few KiB are sent to all ranks at once, and each rank adds all values.
  void add_direct_sum(int ranks, double bytes) {
    std::vector<StepMessage> sends;
    for (int i = 0; i < ranks; ++i) sends.push_back({i * (query_.ranks / ranks), 0});
    add_wire(traffic_of(sends, {.bytes = bytes}), {});
    stages_.latency += ranks * bytes * figures_.add_seconds_per_byte;
  }

  // A ring over all ranks, or over one rank per host. The neighbours' rings then run concurrently.
  void add_ring(int ranks, double part_bytes) {
    CostFigures figures = figures_;
    const int rings = query_.ranks / ranks;
    figures.network.link.seconds_per_byte *= rings;
    if (rings > 1) figures.network.ranks_per_host = 1;
    const Stages ring = ring_sum(figures, ranks, part_bytes);
    stages_.wire += ring.wire;
    stages_.latency += ring.latency;
    stages_.core += ring.core;
    stages_.bytes += ring.bytes;
  }

  const CostQuery& query_;
  const CostFigures& figures_;
  std::vector<Load> shards_;
  Stages stages_;
};

/// The bottleneck determines the interval between chunks.
Prediction pipelined(Stages stages, double chunks, double crowding) {
  stages.work *= crowding;
  const double interval = std::max({stages.work + crowding * stages.core, stages.wire,
                                    stages.total() / double{Pipeline::kWindow}});
  return {.seconds = stages.total() + (chunks - 1) * interval,
          .work_seconds = chunks * stages.work,
          .sent_bytes = chunks * stages.bytes};
}

void check_cost(double value, std::string_view name) {
  if (std::isfinite(value) && value >= 0) return;
  throw InvalidArgumentError(std::string(name) + " is " + std::to_string(value) +
                             ": give a finite number of at least 0");
}

void check_figures(const CostQuery& query, const CostFigures& figures) {
  check_link(figures.network.link, "the link");
  check_link(figures.network.local, "the local link");
  check_cost(figures.crowding, "the crowding");
  check_cost(figures.add_seconds_per_byte, "the time to add a byte");
  if (query.ranks < 1 || figures.network.ranks_per_host < 1)
    throw InvalidArgumentError("ranks is " + std::to_string(query.ranks) + ", ranks_per_host " +
                               std::to_string(figures.network.ranks_per_host) +
                               ": give at least 1");
}

/// Hosts with equal numbers of consecutive ranks.
HostGroups equal_hosts(const CostQuery& query, int ranks_per_host) {
  std::vector<int> hosts;
  for (int rank = 0; rank < query.ranks; ++rank) hosts.push_back(rank / ranks_per_host);
  return {hosts, query.ranks, query.error_growth};
}

// The shards of `count` values: within a host (raw), between hosts, and within a host on the way
// back.
std::vector<Load> loads_of(const CostQuery& query, int per_host, int shards_between, double count) {
  const double share = count / per_host, between = std::ceil(share / shards_between);
  const Load within{share, share * static_cast<double>(dtype_bytes(query.dtype)), false};
  std::vector<Load> loads(static_cast<std::size_t>(per_host), within);
  loads.insert(loads.end(), static_cast<std::size_t>(shards_between),
               {between, frame_bytes_of(query, between)});
  loads.insert(loads.end(), static_cast<std::size_t>(per_host), within);
  return loads;
}

template <typename ScheduleBy>
Prediction predict(const CostQuery& query, const CostFigures& figures,
                   const ScheduleBy& schedule_by) {
  check_figures(query, figures);
  if (query.ranks == 1 || query.count == 0) return {};
  const Shape shape = shape_of(query);
  const Load load{shape.shard_count, frame_bytes_of(query, shape.shard_count), true, shape.filled};
  const Grid grid = grid_of(query);
  const auto rounds = exchanges_of(*query.codec, query.dtype, query.ranks, query.algorithm);
  CostAccumulator costs(query, figures,
                        std::vector<Load>(static_cast<std::size_t>(grid.owners()), load));
  return pipelined(costs.stages(schedule_by(rounds, full_group(0, grid))), shape.chunks,
                   figures.crowding);
}

}  // namespace

void check_link(const LinkFigures& link, std::string_view name) {
  const std::string of = " of " + std::string(name);
  check_cost(link.latency, "the latency" + of);
  check_cost(link.seconds_per_byte, "seconds_per_byte" + of);
  check_cost(link.seconds_per_message, "seconds_per_message" + of);
  check_cost(link.core_seconds_per_byte, "core_seconds_per_byte" + of);
}

Prediction predict_allreduce(const CostQuery& query, const CostFigures& figures) {
  return predict(query, figures, allreduce_by);
}

Prediction predict_reduce_scatter(const CostQuery& query, const CostFigures& figures) {
  CostQuery direct = query;
  direct.dims = {query.ranks};
  return predict(direct, figures, reduce_scatter_by);
}

Prediction predict_hierarchical(const CostQuery& query, const CostFigures& figures) {
  check_figures(query, figures);
  const int per_host = figures.network.ranks_per_host;
  if (query.ranks % per_host != 0)
    throw InvalidArgumentError("ranks is " + std::to_string(query.ranks) +
                               ": give a multiple of ranks_per_host, " + std::to_string(per_host));
  if (query.ranks == 1 || query.count == 0) return {};
  const HostGroups groups = equal_hosts(query, per_host);
  const int hosts = groups.hosts();
  const auto all = static_cast<double>(query.count);
  const std::size_t shard =
      shard_length(query.chunk_count / static_cast<std::size_t>(per_host),
                   static_cast<std::size_t>(hosts), query.codec->traits().unit);
  const double chunk = std::min(all, static_cast<double>(shard) * hosts * per_host);
  const std::vector<Exchange> between =
      exchanges_of(*query.codec, query.dtype, hosts,
                   choose_algorithm({query.codec, query.dtype,
                                     static_cast<std::size_t>(all / per_host), hosts}));
  CostAccumulator costs(
      query, figures,
      loads_of(query, per_host, shards_of(between.back(), hosts, groups.grid()), chunk));
  return pipelined(costs.stages(hierarchical(groups, 0, between)), all / chunk, figures.crowding);
}

Prediction predict_halving_doubling(const CostQuery& query, const CostFigures& figures) {
  check_figures(query, figures);
  CostAccumulator costs(query, figures, {});
  costs.add_steps(host::halving_doubling(0, query.ranks, query.count), query.ranks,
                  static_cast<double>(dtype_bytes(query.dtype)));
  return pipelined(costs.stages(), 1, figures.crowding);
}

}  // namespace tersor
