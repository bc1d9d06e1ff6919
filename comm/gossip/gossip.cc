#include <tersor/agreement.h>
#include <tersor/buffer.h>
#include <tersor/codec.h>
#include <tersor/error.h>
#include <tersor/gossip.h>

#include "codecs/loss.h"
#include "comm/collectives/choose.h"
#include "comm/gossip/lost_edges.h"
#include "comm/transport/mailbox.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

namespace tersor {

enum class GossipMessage : std::uint32_t {
  kFrame = 0,      // followed by a frame and the lost edges
  kHeartbeat = 1,  // the sender waits for another rank
  kDropped = 2,    // the sender has lost the receiver
};

// The first bytes of each message, little-endian.
struct GossipHeader {
  std::uint32_t epoch = 0;  // number of restarts of the sender
  std::uint32_t step = 0;
  GossipMessage type = GossipMessage::kFrame;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(GossipHeader) == 16);

namespace {

std::shared_ptr<const Codec> gossip_codec(const std::string& spec) {
  auto codec = make_codec(spec);
  if (codec->has_feedback())
    throw InvalidArgumentError("gossip: codec is " + spec +
                               ": leave out +ef, because the next difference contains the error");
  return codec;
}

// The default step size follows from the codec's squared error on normal values.
double step_size_of(const GossipOptions& options) {
  if (options.step_size != 0) {
    if (!(options.step_size > 0 && options.step_size <= 1))
      throw InvalidArgumentError("gossip: step_size is " + std::to_string(options.step_size) +
                                 ": give a number above 0 and at most 1");
    return options.step_size;
  }
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(1 << 14);
  for (float& one : values) one = normal(generator);
  const CodecLoss loss = measure_loss({options.codec, {.count = values.size()}}, values);
  // Measured on rings of 8 and 16: docs/systems/gossip.md.
  const double retained = 1 - loss.energy_lost / loss.energy;
  return retained > 0.6 ? 1.0 : std::max(retained / 2, 0.01);
}

}  // namespace

struct Neighbour {
  Edge edge;
  std::optional<Mailbox<GossipHeader>::Message> frame;  // of this step
  Clock::time_point last_message =
      {};                 // arrival of the neighbour's last message, or begin of the step
  bool included = false;  // True if `neighbour_sums` includes the neighbour's y of this epoch
  bool is_lost = false;
};

struct Gossip::State {
  State(Transport& transport, Topology graph, const GossipOptions& chosen)
      : topology(std::move(graph)),
        options(chosen),
        codec(gossip_codec(chosen.codec)),
        step_size(step_size_of(chosen)),
        rank(transport.rank()),
        timeout(std::min<std::chrono::milliseconds>(chosen.timeout, std::chrono::hours(24 * 365))),
        shared_channel(transport.channel()),
        channel(transport.isolated_channel()),
        lost_edges(topology) {
    if (topology.ranks() != transport.ranks())
      throw InvalidArgumentError("gossip: the topology has " + std::to_string(topology.ranks()) +
                                 " ranks, the transport " + std::to_string(transport.ranks()));
    for (const Edge& edge : topology.edges(rank)) neighbours.push_back({.edge = edge});
  }

  const Topology topology;
  const GossipOptions options;
  const std::shared_ptr<const Codec> codec;
  const double step_size;
  const int rank;
  const std::chrono::milliseconds timeout;
  const std::unique_ptr<Transport> shared_channel, channel;
  LostEdges lost_edges;
  std::optional<Mailbox<GossipHeader>> mailbox;  // from the first step
  Clock::time_point next_heartbeat = {};
  std::vector<Neighbour> neighbours;
  std::vector<std::string> names;
  std::vector<ValueSpan> weights;
  std::vector<Segment> segments;
  // `estimates` is y. `neighbour_sums` is the sum of weight * (y of a neighbour - y). Both are f64:
  // each rounding error stays in the sum, and every later step moves the weights by the error.
  std::vector<std::vector<double>> estimates, neighbour_sums;
  std::vector<std::vector<float>> differences;  // x - y; later a decoded q
  Plan plan;
  std::shared_ptr<Buffer> message;
  Buffer workspace;
  std::uint32_t epoch = 0;
  std::uint64_t signature = 0;
  bool is_initialized = false;
  bool in_progress = false;
  bool has_new_loss = false;  // True if a neighbour was lost in this step
  GossipStatistics statistics;

  FrameIdentity identity() const { return {signature, options.checksum}; }
  Execution execution() const { return {.workspace = workspace.span()}; }
  ConstByteSpan own_frame() const {
    const ByteSpan frame = message->span().subspan(sizeof(GossipHeader));
    return frame.first(frame_bytes(frame));
  }

  // Called before the first step.
  void initialize() {
    if (is_initialized) return;
    plan = plan_local(*codec, segments, "gossip");
    message =
        std::make_shared<Buffer>(sizeof(GossipHeader) + plan.frame_bytes + lost_edges.max_bytes());
    workspace = Buffer(plan.workspace_bytes);
    mailbox.emplace(*channel, "gossip", message->bytes() - sizeof(GossipHeader));
    agree();
    for (const ValueSpan& one : weights) {
      estimates.emplace_back(one.count());
      neighbour_sums.emplace_back(one.count());
      differences.emplace_back(one.count());
    }
    is_initialized = true;
  }

  Agreement own_agreement() const {
    Agreement own;
    own.add("codec", codec->spec().text()).add("checksum", options.checksum, {"on", "off"});
    own.add("step_size (times 1e9)", static_cast<std::uint64_t>(step_size * 1e9));
    for (int one = 0; one < topology.ranks(); ++one)
      for (const Edge& edge : topology.edges(one)) {
        own.begin("edge " + std::to_string(one) + "-" + std::to_string(edge.rank));
        own.add("neighbour", edge.rank)
            .add("weight (times 1e12)", static_cast<std::uint64_t>(edge.weight * 1e12));
      }
    for (std::size_t i = 0; i < names.size(); ++i)
      own.begin("\"" + names[i] + "\"").add("name", names[i]).add("count", weights[i].count());
    return own;
  }

  // Throws TransportError on all ranks, with every difference between two of them.
  void agree() {
    const auto own = std::make_shared<const Agreement>(own_agreement());
    signature = own->signature();
    const Operation operation{.name = "gossip",
                              .signature = signature,
                              .agreement = own,
                              .tag = shared_channel->reserve_tags(1),
                              .timeout = options.timeout};
    shared_channel->barrier(operation).wait_synchronize();
  }

  void encode() {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto now = weights[i].as<float>();
      if (!std::ranges::all_of(now, [](float one) { return std::isfinite(one); }))
        throw InvalidArgumentError(names[i] + " is not finite: this rank sent nothing");
      std::ranges::transform(now, estimates[i], differences[i].begin(),
                             [](double x, double y) { return static_cast<float>(x - y); });
    }
    // After an error, the network may still read the last message.
    if (message.use_count() > 1) message = std::make_shared<Buffer>(message->bytes());
    const std::vector<ConstValueSpan> changes(differences.begin(), differences.end());
    const auto step = static_cast<std::uint32_t>(statistics.steps);
    const GossipHeader head{.epoch = epoch, .step = step};
    std::memcpy(message->pointer(), &head, sizeof(head));
    codec->encode({.segments = segments,
                   .gradients = changes,
                   .random = {.key = Signature().add(signature).add(rank).value(), .step = step},
                   .identity = identity(),
                   .execution = execution()},
                  message->span().subspan(sizeof(GossipHeader)));
    lost_edges.write(message->span().subspan(sizeof(GossipHeader) + own_frame().size()));
  }

  // Decodes to `changed`.
  void decode(ConstByteSpan frame) {
    std::vector<ValueSpan> outputs(differences.begin(), differences.end());
    codec->decode({.segments = segments,
                   .frames = {&frame, 1},
                   .outputs = outputs,
                   .identity = identity(),
                   .execution = execution()});
  }

  void begin() {
    initialize();
    encode();
    const ConstByteSpan bytes =
        message->span().first(sizeof(GossipHeader) + own_frame().size() + lost_edges.bytes());
    next_heartbeat = Clock::now() + timeout / 4;
    for_each_neighbour([&](Neighbour& link) {
      mailbox->send(link.edge.rank, message, bytes);
      mailbox->expect(link.edge.rank);
      link.frame.reset();
      link.last_message = Clock::now();
      statistics.sent_bytes += bytes.size();
    });
    in_progress = true;
  }

  // Throws PeerLostError if the neighbour is lost, has lost this rank, or is silent for too long.
  void wait_for(Neighbour& link) {
    while (!has_frame(link) || mailbox->unsent(link.edge.rank) != 0) {
      const Clock::time_point deadline = link.last_message + timeout;
      if (Clock::now() >= deadline)
        throw PeerLostError("gossip: no message from rank " + std::to_string(link.edge.rank) +
                                " within " + std::to_string(timeout.count()) + " ms",
                            link.edge.rank);
      channel->wait_activity(std::min(deadline, next_heartbeat));
      if (Clock::now() >= next_heartbeat) send_heartbeats();
    }
  }

  bool has_frame(Neighbour& link) {
    while (!link.frame.has_value()) {
      auto received = mailbox->receive(link.edge.rank);
      if (!received.has_value()) return false;
      if (received->header.type == GossipMessage::kDropped)
        throw PeerLostError("gossip: dropped by rank " + std::to_string(link.edge.rank),
                            link.edge.rank);
      if (received->header.type == GossipMessage::kFrame)
        link.frame = std::move(received);
      else
        link.last_message = Clock::now();
    }
    return true;
  }

  // Without heartbeats, the neighbours would lose this rank together with the late rank.
  void send_heartbeats() {
    next_heartbeat = Clock::now() + timeout / 4;
    for (Neighbour& link : neighbours) try {
        // At most the frame and one heartbeat are under way.
        if (link.is_lost || mailbox->unsent(link.edge.rank) > 1) continue;
        mailbox->send(link.edge.rank, {.type = GossipMessage::kHeartbeat});
      } catch (const PeerLostError&) {  // wait_for reports the loss
      }
  }

  void remove(Neighbour& link) {
    link.is_lost = true;
    statistics.lost.push_back(link.edge.rank);
    lost_edges.add(rank, link.edge.rank);
    mailbox->cancel(link.edge.rank);
    try {
      mailbox->send(link.edge.rank, {.type = GossipMessage::kDropped});
    } catch (const PeerLostError&) {  // the neighbour is lost
    }
  }

  // Removes the neighbours lost during `work`.
  template <typename Work>
  void for_each_neighbour(const Work& work) {
    for (Neighbour& link : neighbours) try {
        work(link);
      } catch (const PeerLostError&) {
        remove(link);
      }
    if (std::erase_if(neighbours, [](const Neighbour& link) { return link.is_lost; }) != 0)
      has_new_loss = true;
  }

  void mix() {
    if (!in_progress) begin();
    in_progress = false;
    try {
      receive();
    } catch (...) {  // only some estimates include this step's differences
      begin_epoch(epoch + 1);
      throw;
    }
    ++statistics.steps;
    check_partition();
  }

  void receive() {
    for_each_neighbour([this](Neighbour& link) { wait_for(link); });
    std::uint32_t newest = epoch + (std::exchange(has_new_loss, false) ? 1 : 0);
    for (const Neighbour& link : neighbours) newest = std::max(newest, link.frame->header.epoch);
    const bool new_epoch = newest != epoch;
    if (new_epoch) begin_epoch(newest);
    apply_frames(new_epoch);
  }

  // Called after a complete step.
  void check_partition() {
    std::vector<int> now = lost_edges.unreachable_from(rank);
    const bool is_new = !std::ranges::includes(statistics.cut_off, now);
    statistics.cut_off = std::move(now);
    if (!is_new || options.on_split == OnSplit::kContinue) return;
    std::string ranks;
    for (const int one : statistics.cut_off) ranks += " " + std::to_string(one);
    throw PeerLostError("gossip: no path connects rank " + std::to_string(rank) + " to ranks" +
                            ranks + " any more; later calls mix without these ranks",
                        -1);
  }

  // Starts a new epoch and forgets the shared state of neighbours. The next message announces the
  // epoch.
  void begin_epoch(std::uint32_t newest) {
    epoch = newest;
    for (auto* all : {&estimates, &neighbour_sums})
      for (auto& one : *all) std::ranges::fill(one, 0.0);
    for (Neighbour& link : neighbours) link.included = false;
  }

  // Applies the frames of the current epoch. At the start of an epoch, no weights change yet,
  // because this rank's frame belongs to the previous epoch.
  void apply_frames(bool new_epoch) {
    double own_weight = 0;
    for (Neighbour& link : neighbours) {
      const ConstByteSpan body = link.frame->body, frame = body.first(frame_bytes(body));
      lost_edges.read(body.subspan(frame.size()));
      if (link.frame->header.epoch == epoch) {
        if (!std::exchange(link.included, true)) add(neighbour_sums, -link.edge.weight, estimates);
        decode(frame);
        add(neighbour_sums, link.edge.weight, differences);
        own_weight += link.edge.weight;
      }
      link.frame.reset();
    }
    if (new_epoch) return;
    decode(own_frame());
    add(estimates, 1, differences);
    add(neighbour_sums, -own_weight, differences);
    for (std::size_t i = 0; i < weights.size(); ++i)
      std::ranges::transform(
          weights[i].as<float>(), neighbour_sums[i], weights[i].as<float>().begin(),
          [this](double x, double step) { return static_cast<float>(x + step_size * step); });
  }

  template <typename T>
  static void add(std::vector<std::vector<double>>& sums, double factor,
                  const std::vector<std::vector<T>>& values) {
    for (std::size_t i = 0; i < sums.size(); ++i)
      for (std::size_t j = 0; j < sums[i].size(); ++j) sums[i][j] += factor * values[i][j];
  }
};

Gossip::Gossip(Transport& transport, Topology topology, const GossipOptions& options)
    : state_(std::make_unique<State>(transport, std::move(topology), options)) {}
Gossip::~Gossip() = default;

void Gossip::add(std::string name, ValueSpan weights) {
  State& state = *state_;
  if (state.is_initialized)
    throw InvalidArgumentError("gossip: add \"" + name + "\" before the first step");
  (void)weights.as<float>();
  state.segments.push_back(
      {.count = weights.count(), .parameter = static_cast<std::uint32_t>(state.segments.size())});
  state.names.push_back(std::move(name));
  state.weights.push_back(weights);
}

void Gossip::begin() {
  if (!state_->in_progress) state_->begin();
}
void Gossip::mix() { state_->mix(); }
double Gossip::step_size() const { return state_->step_size; }
GossipStatistics Gossip::statistics() const { return state_->statistics; }

}  // namespace tersor
