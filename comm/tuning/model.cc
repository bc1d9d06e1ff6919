// See model.h. A chunk's *stages* are summed into: `work` of the codec, `wire`, in which the
// sender's link is busy, and `latency`, in which nothing of this chunk moves. `moving` is what the
// core does for the bytes sent, which is part of the wire's time where a chunk is alone.
#include "comm/tuning/model.h"

#include "comm/collectives/parts.h"
#include "comm/collectives/pipeline.h"
#include "comm/transport/host/envelope.h"
#include "comm/transport/host/ring.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tersor {
namespace {

constexpr double kEnvelopeBytes = sizeof(host::Envelope);

struct Stages {
  double work = 0;
  double wire = 0;
  double latency = 0;
  double moving = 0;
  double bytes = 0;

  double chain() const { return work + wire + latency; }
};

/// What a question comes to: lanes, and how often a chunk of them goes.
struct Shape {
  int ranks;
  double lane_count;  ///< values of a chunk in one lane
  double chunks;      ///< a whole number but for the last one's share
};

Shape shape_of(const CostQuestion& question) {
  const auto lanes =
      static_cast<std::size_t>(question.algorithm == Algorithm::kOneShot ? 1 : question.ranks);
  const std::size_t units = ceil_div(question.count, kUnit);
  const std::size_t longest = std::min(question.count, ceil_div(units, lanes) * kUnit);
  const std::size_t step = align_up(std::max<std::size_t>(question.chunk_count / lanes, 1), kUnit);
  const bool cut = question.codec->traits().divisible && step < longest;
  const auto whole = static_cast<double>(longest), lane = static_cast<double>(cut ? step : longest);
  return {question.ranks, lane, cut ? whole / lane : 1.0};
}

Plan plan_of(const CostQuestion& question, double count) {
  const Segment segment{.count = static_cast<std::size_t>(std::ceil(count))};
  return question.codec->plan({.segments = {&segment, 1},
                               .dtype = question.dtype,
                               .contributions = static_cast<std::size_t>(question.ranks)});
}

double frame_bytes_of(const CostQuestion& question, double count) {
  return static_cast<double>(plan_of(question, count).frame_bytes);
}

/// How long a sender is busy with one message.
double message_seconds(const LinkFigures& link, double bytes) {
  return link.seconds_per_message + (bytes + kEnvelopeBytes) * link.seconds_per_byte;
}

/// A message of `bytes` to each other rank. Ranks of a host share its link, and reach each other by
/// the local one at the same time.
void add_exchange(Stages& stages, const Network& network, int ranks, double bytes) {
  const int sharing = std::min(network.ranks_per_host, ranks);
  const int near = sharing - 1, far = ranks - sharing;
  const double away = far * (network.link.seconds_per_message +
                             sharing * (bytes + kEnvelopeBytes) * network.link.seconds_per_byte);
  stages.wire += std::max(away, near * message_seconds(network.local, bytes));
  stages.latency += far > 0 ? network.link.latency : network.local.latency;
  const double all = (ranks - 1) * (bytes + kEnvelopeBytes);
  stages.moving += all * network.link.core_seconds_per_byte;
  stages.bytes += all;
}

/// The slowest hop of a ring over all ranks. Only one rank of a host sends to the next host.
const LinkFigures& ring_link(const Network& network, int ranks) {
  return ranks > network.ranks_per_host ? network.link : network.local;
}

// A few KiB go to everybody at once, who adds them all.
Stages direct_sum(const CostFigures& figures, int ranks, double bytes) {
  Stages stages;
  add_exchange(stages, figures.network, ranks, bytes);
  stages.latency += ranks * bytes * figures.add_seconds_per_byte;
  return stages;
}

double ring_messages(double part_bytes) {
  using Tuning = host::RingTuning;
  const double bytes = std::clamp<double>(part_bytes / Tuning::kChunksPerPart,
                                          Tuning::kLeastChunkBytes, Tuning::kMostChunkBytes);
  return std::max(1.0, std::ceil(part_bytes / bytes));
}

// A message goes on as soon as it has come and was added; a step cannot be shorter than that, nor
// than what the step's messages keep the link busy.
Stages ring_sum(const CostFigures& figures, int ranks, double part_bytes) {
  const LinkFigures& link = ring_link(figures.network, ranks);
  const double messages = ring_messages(part_bytes), steps = 2.0 * (ranks - 1);
  const double bytes = part_bytes / messages;
  const double busy = message_seconds(link, bytes);
  const double passed_on = link.latency + bytes * figures.add_seconds_per_byte;
  const double step = std::max(messages * busy, busy + passed_on);
  const double seconds = (steps - 1) * step + messages * busy + passed_on;
  const double wire = steps * messages * busy;
  const double sent = steps * messages * (bytes + kEnvelopeBytes);
  return {.wire = wire,
          .latency = seconds - wire,
          .moving = sent * (link.core_seconds_per_byte + figures.add_seconds_per_byte / 2),
          .bytes = sent};
}

Stages native(const CostQuestion& question, const CostFigures& figures, const Shape& shape) {
  const Round round = plan_of(question, shape.lane_count).rounds.front();
  const double value_bytes = static_cast<double>(dtype_bytes(round.native_dtype));
  const double part_bytes = shape.lane_count * value_bytes;
  const double all_bytes =
      std::min(part_bytes * shape.ranks, static_cast<double>(question.count) * value_bytes);
  Stages stages = all_bytes <= host::RingTuning::kDirectBytes
                      ? direct_sum(figures, shape.ranks, all_bytes)
                      : ring_sum(figures, shape.ranks, part_bytes);
  const CodecCosts& codec = figures.codec;
  stages.work = shape.ranks * (codec.encode_native.seconds(shape.lane_count) +
                               codec.decode_native.seconds(shape.lane_count));
  return stages;
}

Stages one_shot(const CostQuestion& question, const CostFigures& figures, const Shape& shape) {
  const CodecCosts& codec = figures.codec;
  Stages stages;
  add_exchange(stages, figures.network, shape.ranks, frame_bytes_of(question, shape.lane_count));
  stages.work = codec.encode.seconds(shape.lane_count) + codec.decode.seconds(shape.lane_count) +
                (shape.ranks - 1) * codec.decode_more.seconds(shape.lane_count);
  return stages;
}

Stages two_shot(const CostQuestion& question, const CostFigures& figures, const Shape& shape) {
  const CodecCosts& codec = figures.codec;
  const double bytes = frame_bytes_of(question, shape.lane_count);
  Stages stages;
  add_exchange(stages, figures.network, shape.ranks, bytes);
  add_exchange(stages, figures.network, shape.ranks, bytes);
  stages.work = shape.ranks *
                (codec.encode.seconds(shape.lane_count) + codec.reduce.seconds(shape.lane_count) +
                 codec.decode.seconds(shape.lane_count));
  return stages;
}

Stages stages_of(const CostQuestion& question, const CostFigures& figures, const Shape& shape) {
  if (question.algorithm == Algorithm::kNative) return native(question, figures, shape);
  if (question.algorithm == Algorithm::kOneShot) return one_shot(question, figures, shape);
  return two_shot(question, figures, shape);
}

/// Several chunks: what is scarcest decides how soon one follows the other.
Prediction pipelined(Stages stages, double chunks, double crowding) {
  stages.work *= crowding;
  const double apart = std::max({stages.work + crowding * stages.moving, stages.wire,
                                 stages.chain() / double{Pipeline::kWindow}});
  return {.seconds = stages.chain() + (chunks - 1) * apart,
          .work_seconds = chunks * stages.work,
          .sent_bytes = chunks * stages.bytes};
}

void check_cost(double value, std::string_view name) {
  if (std::isfinite(value) && value >= 0) return;
  throw InvalidArgument(std::string(name) + " of " + std::to_string(value) +
                        " is nonsense: give a number of at least 0");
}

void check_figures(const CostQuestion& question, const CostFigures& figures) {
  check_link(figures.network.link, "the link");
  check_link(figures.network.local, "the local link");
  check_cost(figures.crowding, "a crowding");
  check_cost(figures.add_seconds_per_byte, "a time to add");
  if (question.ranks < 1 || figures.network.ranks_per_host < 1)
    throw InvalidArgument("there is at least 1 rank, in all and on a host");
}

// Reduce-scatter among the ranks of a host, in bare values; what each of them then holds goes
// between hosts; all-gather back. The host's ranks share its link.
Stages hierarchical(const CostQuestion& question, const CostFigures& figures, double count) {
  const Network& network = figures.network;
  const int near = network.ranks_per_host, hosts = question.ranks / near;
  const double share_bytes = count / near * static_cast<double>(dtype_bytes(question.dtype));
  const double hop = message_seconds(network.local, share_bytes);
  CostFigures between = figures;
  between.network.ranks_per_host = 1;
  between.network.link.seconds_per_byte *= near;
  Stages stages;
  if (hosts > 1) stages = two_shot(question, between, {hosts, std::ceil(count / near / hosts), 1});
  stages.latency += 2 * (near - 1) * (network.local.latency + hop) +
                    (near - 1) * share_bytes * figures.add_seconds_per_byte;
  stages.bytes += 2 * (near - 1) * (share_bytes + kEnvelopeBytes);
  return stages;
}

}  // namespace

void check_link(const LinkFigures& link, std::string_view name) {
  const std::string of = " of " + std::string(name);
  check_cost(link.latency, "a latency" + of);
  check_cost(link.seconds_per_byte, "seconds a byte" + of);
  check_cost(link.seconds_per_message, "seconds a message" + of);
  check_cost(link.core_seconds_per_byte, "a core's seconds a byte" + of);
}

std::vector<Algorithm> possible_algorithms(const Codec& codec, Dtype dtype) {
  const Segment segment{.count = kUnit};
  const Plan plan = codec.plan({.segments = {&segment, 1}, .dtype = dtype});
  std::vector<Algorithm> algorithms;
  for (const Exchange exchange : plan.rounds.front().exchanges) {
    if (exchange == Exchange::kNativeSum) algorithms.push_back(Algorithm::kNative);
    if (exchange == Exchange::kTwoShot) algorithms.push_back(Algorithm::kTwoShot);
    if (exchange == Exchange::kGather) algorithms.push_back(Algorithm::kOneShot);
  }
  return algorithms;
}

Prediction predict_allreduce(const CostQuestion& question, const CostFigures& figures) {
  check_figures(question, figures);
  if (question.ranks == 1 || question.count == 0) return {};
  const Shape shape = shape_of(question);
  return pipelined(stages_of(question, figures, shape), shape.chunks, figures.crowding);
}

Prediction predict_hierarchical(const CostQuestion& question, const CostFigures& figures) {
  check_figures(question, figures);
  const int near = figures.network.ranks_per_host;
  if (question.ranks % near != 0)
    throw InvalidArgument(std::to_string(question.ranks) + " ranks do not fill hosts of " +
                          std::to_string(near));
  if (question.ranks == 1 || question.count == 0) return {};
  const auto all = static_cast<double>(question.count);
  const double chunk = std::min(all, static_cast<double>(question.chunk_count));
  return pipelined(hierarchical(question, figures, chunk), all / chunk, figures.crowding);
}

}  // namespace tersor
