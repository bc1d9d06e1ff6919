#include <tersor/buffer.h>
#include <tersor/codec.h>
#include <tersor/error.h>
#include <tersor/gossip.h>

#include "comm/collectives/alone.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <utility>

namespace tersor {
namespace {

// Before each frame. Little-endian.
struct Head {
  std::uint32_t epoch = 0;  // how often the sender has begun anew
  std::uint32_t step = 0;
  std::uint64_t reserved = 0;
};
static_assert(sizeof(Head) == 16);

// `keep_alive`: what is sent lies in, which the network may read when nobody waits any more.
Operation operation(std::chrono::milliseconds timeout, std::shared_ptr<const void> keep_alive) {
  return {.name = "gossip",
          .tag = kUnorderedTag,
          .timeout = timeout,
          .keep_alive = std::move(keep_alive)};
}

std::shared_ptr<const Codec> codec_of(const std::string& spec) {
  auto codec = make_codec(spec);
  if (codec->has_feedback())
    throw InvalidArgument("gossip by \"" + spec +
                          "\": what is left out is left over by itself: without +ef");
  return codec;
}

// What is left of the energy of normal values.
double kept_energy(const Codec& codec) {
  constexpr std::size_t kCount = 1 << 14;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(kCount), back(kCount);
  for (float& one : values) one = normal(generator);
  const Segment segment{.count = kCount};
  const Plan plan = plan_alone(codec, {&segment, 1}, "gossip");
  Buffer frame(plan.frame_bytes), workspace(plan.workspace_bytes);
  const ConstValueSpan in(values);
  const ValueSpan out(back);
  codec.encode({.segments = {&segment, 1},
                .gradients = {&in, 1},
                .execution = {.workspace = workspace.span()}},
               frame.span());
  const ConstByteSpan bytes = frame.span();
  codec.decode({.segments = {&segment, 1},
                .frames = {&bytes, 1},
                .outputs = {&out, 1},
                .execution = {.workspace = workspace.span()}});
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    lost += (values[i] - back[i]) * (values[i] - back[i]);
    all += values[i] * values[i];
  }
  return 1 - lost / all;
}

double step_size_of(const GossipOptions& options, const Codec& codec) {
  if (options.step_size != 0) {
    if (!(options.step_size > 0 && options.step_size <= 1))
      throw InvalidArgument("gossip: step_size is above 0 and at most 1, not " +
                            std::to_string(options.step_size));
    return options.step_size;
  }
  const double kept = kept_energy(codec);  // tried on rings of 8 and 16: docs/gossip.md
  return kept > 0.6 ? 1.0 : std::max(kept / 2, 0.01);
}

}  // namespace

// A neighbour, and what is under way to and from it.
struct Neighbour {
  Edge edge;
  Handle sending, receiving;
  bool counts = false;  // in this epoch: what it knows is in `around`
};

struct Gossip::State {
  State(Transport& transport, Topology graph, const GossipOptions& chosen)
      : topology(std::move(graph)),
        options(chosen),
        codec(codec_of(chosen.codec)),
        step_size(step_size_of(chosen, *codec)),
        rank(transport.rank()),
        everybody(transport.channel()),
        lifeline(transport.lifeline()) {
    if (topology.ranks() != transport.ranks())
      throw InvalidArgument("gossip: a topology of " + std::to_string(topology.ranks()) +
                            " ranks among " + std::to_string(transport.ranks()));
    for (const Edge& edge : topology.edges(rank)) links.push_back({.edge = edge});
  }

  const Topology topology;
  const GossipOptions options;
  const std::shared_ptr<const Codec> codec;
  const double step_size;
  const int rank;
  const std::unique_ptr<Transport> everybody, lifeline;
  std::vector<Neighbour> links;
  std::vector<std::string> names;
  std::vector<ValueSpan> weights;
  std::vector<Segment> segments;
  std::vector<std::vector<float>> known, around;  // y; the sum of weight * (y of a neighbour - y)
  std::vector<std::vector<float>> changed;  // x - y; then what differs between q and a neighbour's
  Plan plan;
  std::shared_ptr<Buffer> message;
  Buffer workspace;
  std::uint32_t epoch = 0;
  std::uint64_t signature = 0;
  bool is_settled = false;
  bool is_under_way = false;
  bool is_broken = false;  // a neighbour was lost in this step
  GossipStatistics seen;

  FrameIdentity identity() const { return {signature, options.checksum}; }
  Execution execution() const { return {.workspace = workspace.span()}; }
  ConstByteSpan own_frame() const {
    const ByteSpan frame = message->span().subspan(sizeof(Head));
    return frame.first(frame_bytes(frame));
  }

  // Before the first step.
  void settle() {
    if (is_settled) return;
    plan = plan_alone(*codec, segments, "gossip");
    message = std::make_shared<Buffer>(sizeof(Head) + plan.frame_bytes);
    workspace = Buffer(plan.workspace_bytes);
    agree();
    for (const ValueSpan& one : weights) {
      known.emplace_back(one.count());
      around.emplace_back(one.count());
      changed.emplace_back(one.count());
    }
    is_settled = true;
  }

  // Throws on all ranks alike.
  void agree() {
    Signature own;
    own.add(codec->spec().text()).add(options.checksum);
    own.add(static_cast<std::uint64_t>(step_size * 1e9));
    for (int one = 0; one < topology.ranks(); ++one)
      for (const Edge& edge : topology.edges(one))
        own.add(edge.rank).add(static_cast<std::uint64_t>(edge.weight * 1e12));
    for (std::size_t i = 0; i < names.size(); ++i)
      own.add(names[i]).add(static_cast<std::uint64_t>(weights[i].count()));
    signature = own.value();
    const auto bytes = std::as_bytes(std::span(&signature, 1));
    Handle all = everybody->all_gather({.name = "gossip (agreement)",
                                        .tag = everybody->reserve_tags(1),
                                        .timeout = options.timeout},
                                       bytes, bytes.size());
    all.wait_synchronize();
    std::string others;
    std::vector<std::uint64_t> found(static_cast<std::size_t>(topology.ranks()), signature);
    for (int one = 0; one < topology.ranks(); ++one)
      if (one != rank)
        std::memcpy(&found[static_cast<std::size_t>(one)], all.received(one).data(), bytes.size());
    for (std::size_t one = 1; one < found.size(); ++one)
      if (found[one] != found[0]) others += " " + std::to_string(one);
    if (!others.empty())
      throw InvalidArgument(
          "gossip: another topology, codec, step size or other weights than on rank 0 have ranks" +
          others);
  }

  void encode() {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto now = weights[i].as<float>();
      if (!std::ranges::all_of(now, [](float one) { return std::isfinite(one); }))
        throw InvalidArgument("gossip: " + names[i] +
                              " is not finite; nothing was sent, neighbours wait");
      std::ranges::transform(now, known[i], changed[i].begin(), std::minus());
    }
    const std::vector<ConstValueSpan> changes(changed.begin(), changed.end());
    const auto step = static_cast<std::uint32_t>(seen.steps);
    const Head head{.epoch = epoch, .step = step};
    std::memcpy(message->pointer(), &head, sizeof(head));
    codec->encode({.segments = segments,
                   .gradients = changes,
                   .random = {.key = Signature().add(signature).add(rank).value(), .step = step},
                   .identity = identity(),
                   .execution = execution()},
                  message->span().subspan(sizeof(Head)));
  }

  void decode(std::vector<std::vector<float>>& to, ConstByteSpan frame, DecodeMode mode,
              float factor = 1) {
    std::vector<ValueSpan> outputs(to.begin(), to.end());
    codec->decode({.segments = segments,
                   .frames = {&frame, 1},
                   .outputs = outputs,
                   .mode = mode,
                   .factor = factor,
                   .identity = identity(),
                   .execution = execution()});
  }

  void begin() {
    settle();
    encode();
    const ConstByteSpan bytes = message->span().first(sizeof(Head) + own_frame().size());
    const std::size_t capacity = message->bytes();
    for_each_neighbour([&](Neighbour& link) {
      link.sending = lifeline->send(operation(options.timeout, message), link.edge.rank, bytes);
      link.receiving = lifeline->receive(operation(options.timeout, {}), link.edge.rank, capacity);
      seen.sent_bytes += bytes.size();
    });
    is_under_way = true;
  }

  // Whoever is lost in it is one no more; what is on its way there may be read for a while.
  template <typename Work>
  void for_each_neighbour(const Work& work) {
    const std::size_t before = links.size();
    std::erase_if(links, [&](Neighbour& link) {
      try {
        work(link);
        return false;
      } catch (const PeerLost&) {
        seen.lost.push_back(link.edge.rank);
        return true;
      }
    });
    if (links.size() == before) return;
    is_broken = true;
    const Buffer& old = *message;
    auto anew = std::make_shared<Buffer>(old.bytes());
    std::memcpy(anew->pointer(), old.pointer(), old.bytes());
    message = std::move(anew);
  }

  void mix() {
    if (!is_under_way) begin();
    is_under_way = false;
    for_each_neighbour([](Neighbour& link) {
      link.receiving.wait_synchronize();
      link.sending.wait_synchronize();
    });
    std::uint32_t newest = epoch + (std::exchange(is_broken, false) ? 1 : 0);
    for (const Neighbour& link : links) newest = std::max(newest, head_of(link).epoch);
    const bool anew = newest != epoch;
    if (anew) forget(newest);
    take(anew);
    ++seen.steps;
  }

  static Head head_of(const Neighbour& link) {
    Head head;
    const ConstByteSpan bytes = link.receiving.received(link.edge.rank);
    if (bytes.size() < sizeof(head)) throw WireError("gossip: a message too short");
    std::memcpy(&head, bytes.data(), sizeof(head));
    return head;
  }

  // What neighbours know of each other; they hear of it with the next message.
  void forget(std::uint32_t newest) {
    epoch = newest;
    for (auto* all : {&known, &around})
      for (auto& one : *all) std::ranges::fill(one, 0.0f);
    for (Neighbour& link : links) link.counts = false;
  }

  // Those of this epoch count; where it has just begun, nothing moves yet, and our own frame was of
  // the one before.
  void take(bool anew) {
    for (Neighbour& link : links) {
      if (head_of(link).epoch == epoch) {
        if (!std::exchange(link.counts, true)) begin_to_count(link);
        add_difference(link, anew);
      }
      link.receiving = {};
      link.sending = {};
    }
    if (anew) return;
    decode(known, own_frame(), DecodeMode::kAdd);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto own = weights[i].as<float>();
      for (std::size_t j = 0; j < own.size(); ++j)
        own[j] += static_cast<float>(step_size) * around[i][j];
    }
  }

  // Of what has come from a neighbour and what went there, before it is weighed: the neighbour has
  // the same with the other sign, to the last bit, so that the mean stays.
  void add_difference(const Neighbour& link, bool anew) {
    if (anew)
      for (auto& one : changed) std::ranges::fill(one, 0.0f);
    else
      decode(changed, own_frame(), DecodeMode::kAssign, -1);
    decode(changed, link.receiving.received(link.edge.rank).subspan(sizeof(Head)),
           DecodeMode::kAdd);
    for (std::size_t i = 0; i < around.size(); ++i)
      for (std::size_t j = 0; j < around[i].size(); ++j)
        around[i][j] += static_cast<float>(link.edge.weight) * changed[i][j];
  }

  void begin_to_count(const Neighbour& link) {
    for (std::size_t i = 0; i < known.size(); ++i)
      for (std::size_t j = 0; j < known[i].size(); ++j)
        around[i][j] -= static_cast<float>(link.edge.weight) * known[i][j];
  }
};

Gossip::Gossip(Transport& transport, Topology topology, const GossipOptions& options)
    : state_(std::make_unique<State>(transport, std::move(topology), options)) {}
Gossip::~Gossip() = default;

void Gossip::add(std::string name, ValueSpan weights) {
  State& state = *state_;
  if (state.is_settled) throw InvalidArgument("gossip: add \"" + name + "\" before the first step");
  (void)weights.as<float>();
  state.segments.push_back(
      {.count = weights.count(), .parameter = static_cast<std::uint32_t>(state.segments.size())});
  state.names.push_back(std::move(name));
  state.weights.push_back(weights);
}

void Gossip::begin() {
  if (!state_->is_under_way) state_->begin();
}
void Gossip::mix() { state_->mix(); }
double Gossip::step_size() const { return state_->step_size; }
GossipStatistics Gossip::statistics() const { return state_->seen; }

}  // namespace tersor
