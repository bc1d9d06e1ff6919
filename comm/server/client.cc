#include <tersor/buffer.h>
#include <tersor/error.h>
#include <tersor/server.h>

#include "comm/server/layout.h"
#include "comm/server/messages.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace tersor {

struct WorkerFrames::State {
  ServerLayout layout;
  Checksum checksum = Checksum::kOn;
  std::uint64_t key = 0;  // for random numbers
  Buffer workspace;
  std::vector<std::vector<float>> residuals;

  template <typename Span>
  std::vector<Span> parts(std::span<const Span> whole) const {
    std::vector<Span> parts;
    for (const Segment& part : layout.segments)
      parts.push_back(whole[part.parameter].subspan(part.first_index, part.count));
    return parts;
  }
};

WorkerFrames::WorkerFrames(std::span<const std::size_t> counts, const ServerOptions& options,
                           int worker, int server, int servers)
    : state_(new State{.layout = server_layout(counts, options, server, servers),
                       .checksum = options.checksum}) {
  const ServerLayout& layout = state_->layout;
  state_->key = Signature().add(layout.signature()).add(worker).value();
  state_->workspace =
      Buffer(std::max(layout.push_plan.workspace_bytes, layout.pull_plan.workspace_bytes));
  if (layout.push->has_feedback())
    for (const Segment& part : layout.segments) state_->residuals.emplace_back(part.count);
}
WorkerFrames::~WorkerFrames() = default;
WorkerFrames::WorkerFrames(WorkerFrames&&) noexcept = default;

std::uint64_t WorkerFrames::signature() const { return state_->layout.signature(); }
const Agreement& WorkerFrames::agreement() const { return state_->layout.agreement; }
std::size_t WorkerFrames::push_capacity() const { return state_->layout.push_plan.frame_bytes; }
std::size_t WorkerFrames::pull_capacity() const { return state_->layout.pull_plan.frame_bytes; }

std::size_t WorkerFrames::encode(std::span<const ConstValueSpan> gradients, std::uint32_t clock,
                                 ByteSpan frame) {
  State& state = *state_;
  const auto parts = state.parts(gradients);
  std::vector<SegmentState> residuals;
  for (std::vector<float>& one : state.residuals) residuals.push_back({one, one});
  state.layout.push->encode({.segments = state.layout.segments,
                             .gradients = parts,
                             .states = residuals,
                             .random = {.key = state.key, .step = clock},
                             .identity = state.layout.identity(state.checksum),
                             .execution = {.workspace = state.workspace.span()}},
                            frame);
  return frame_bytes(frame);
}

void WorkerFrames::decode(ConstByteSpan frame, std::span<const ValueSpan> weights) {
  const State& state = *state_;
  const auto parts = state.parts(weights);
  state.layout.pull->decode({.segments = state.layout.segments,
                             .frames = {&frame, 1},
                             .outputs = parts,
                             .identity = state.layout.identity(state.checksum),
                             .execution = {.workspace = state.workspace.span()}});
}

// A server from a worker's point of view.
class ServerConnection {
 public:
  ServerConnection(const ServerAt& at, WorkerFrames frames, std::chrono::milliseconds timeout)
      : at_(at),
        frames_(std::move(frames)),
        timeout_(timeout),
        mailbox_(*at.isolated_channel, kServerMailbox,
                 std::max(frames_.pull_capacity(), kMaxText)) {
    if (is_local()) own_frame_ = Buffer(std::max(frames_.push_capacity(), frames_.pull_capacity()));
  }

  ClientStatistics statistics;

  bool is_local() const { return at_.own != nullptr; }
  int worker() const { return at_.isolated_channel->rank(); }

  std::uint32_t clock() const { return clock_; }

  void join() {
    if (is_local()) {
      if (at_.own->signature() != frames_.signature()) throw_mismatch(at_.own->agreement());
      clock_ = at_.own->join(worker());
      return;
    }
    send({.type = ServerMessage::kJoin, .signature = frames_.signature()});
    wait([&] { return joined_.has_value(); });
    clock_ = *joined_;
  }

  void push(std::span<const ConstValueSpan> gradients) {
    wait([&] { return pending() < kMaxPendingPushes; });
    const auto fill = [&](ByteSpan space) { return frames_.encode(gradients, clock_, space); };
    if (is_local()) {
      at_.own->push(worker(), clock_, own_frame_.span().first(fill(own_frame_.span())));
    } else {
      guard([&] {
        statistics.sent_bytes +=
            mailbox_.send(at_.rank, {.type = ServerMessage::kPush, .clock = clock_},
                          frames_.push_capacity(), fill);
      });
      pushed_.push_back(clock_);
    }
    ++clock_;
  }

  void request_weights() {
    if (!is_local()) send({.type = ServerMessage::kPull, .clock = clock_});
  }

  void pull(std::span<const ValueSpan> weights) {
    if (is_local()) {
      wait([&] { return at_.own->may_pull(worker(), clock_); });
      const std::size_t bytes = at_.own->pull(worker(), clock_, own_frame_.span());
      return frames_.decode(own_frame_.span().first(bytes), weights);
    }
    wait([&] { return weights_.has_value(); });
    const auto message = std::exchange(weights_, std::nullopt);
    statistics.received_bytes += sizeof(ServerHeader) + message->body.size();
    frames_.decode(message->body, weights);
  }

  /// The timeout applies to each push, because each push waits for another step of the slowest
  /// worker.
  void flush() {
    for (std::size_t left = pending(); left > 0; --left) wait([&] { return pending() < left; });
  }

  /// Leaving would drop pushes that wait for other workers, so `flush` comes first.
  void leave() {
    flush();
    send_leave();
  }

  /// Call after an error, when the server may no longer receive.
  void leave_immediately() try {
    timeout_ = std::min<std::chrono::milliseconds>(timeout_, std::chrono::seconds(1));
    send_leave();
  } catch (const std::exception&) {
  }

 private:
  void send_leave() {
    if (is_local()) return at_.own->leave(worker());
    leaving_ = true;
    send({.type = ServerMessage::kLeave});
    wait([&] { return mailbox_.unsent(at_.rank) == 0; });
  }

  std::size_t pending() const { return is_local() ? at_.own->waiting(worker()) : pushed_.size(); }

  void send(const ServerHeader& header) {
    guard([&] { mailbox_.send(at_.rank, header); });
  }

  // Waits until `done` returns true, and handles the server's messages meanwhile.
  template <typename Done>
  void wait(const Done& done) {
    const auto until = Clock::now() + timeout_;
    if (is_local()) {
      at_.own->wait(done, until);
    } else {
      guard([&] {
        while (!done() && Clock::now() < until)
          if (!receive())
            at_.isolated_channel->wait_activity(
                std::min(until, Clock::now() + std::chrono::seconds(1)));
      });
    }
    if (!done())
      throw TransportError("the server on rank " + std::to_string(at_.rank) +
                           " did not answer within " + std::to_string(timeout_.count()) + " ms");
  }

  // The server and this worker have different options.
  [[noreturn]] void throw_mismatch(const Agreement& server) const {
    auto differences = frames_.agreement().differences(server, worker(), at_.rank);
    throw TransportError("the server on rank " + std::to_string(at_.rank) +
                             " has other options: " + text_of(differences),
                         differences);
  }

  bool receive() {
    auto message = mailbox_.receive(at_.rank);
    if (!message.has_value()) return false;
    const auto& [owner, header, rest] = *message;
    switch (header.type) {
      case ServerMessage::kJoined:
        joined_ = header.clock;
        break;
      case ServerMessage::kApplied:
        if (pushed_.empty())
          throw WireError("parameter server: an answer to a push that this worker did not send");
        pushed_.pop_front();
        break;
      case ServerMessage::kWeights:
        if (header.clock == clock_)
          weights_ = std::move(message);  // else: an answer to an earlier pull
        break;
      case ServerMessage::kOptions:
        throw_mismatch(Agreement::parse(unpack(rest)));
      case ServerMessage::kRejected:
        if (leaving_) break;
        throw InvalidArgumentError(
            "the server on rank " + std::to_string(at_.rank) + ": " +
            std::string(reinterpret_cast<const char*>(rest.data()), rest.size()));
      default:
        throw WireError("parameter server: unexpected message type");
    }
    return true;
  }

  template <typename Work>
  void guard(const Work& work) try {
    work();
  } catch (const PeerLostError& lost) {
    throw TransportError("the server on rank " + std::to_string(at_.rank) +
                         " is gone: " + lost.what());
  }

  ServerAt at_;
  WorkerFrames frames_;
  std::uint32_t clock_ = 0;
  std::chrono::milliseconds timeout_;
  ServerMailbox mailbox_;
  Buffer own_frame_;
  std::optional<ServerMailbox::Message> weights_;
  std::deque<std::uint32_t> pushed_;  // without an answer
  std::optional<std::uint32_t> joined_;
  bool leaving_ = false;
};

namespace {

void check_finite(std::span<const ConstValueSpan> gradients, std::uint32_t clock) {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (!std::ranges::all_of(gradients[i].as<float>(),
                             [](float one) { return std::isfinite(one); }))
      throw InvalidArgumentError("push for clock " + std::to_string(clock) +
                                 ": the gradient of parameter " + std::to_string(i) +
                                 " is not finite and was not sent: push zeros to skip it");
}

}  // namespace

struct ParameterClient::State {
  std::deque<ServerConnection> servers;
  std::vector<std::size_t> counts;
  bool left = false;
  std::exception_ptr failed;  // after an error, the servers' state is unknown

  template <typename Work>
  void attempt(const Work& work) {
    if (failed) std::rethrow_exception(failed);
    try {
      work();
    } catch (...) {
      failed = std::current_exception();
      throw;
    }
  }

  template <typename Span>
  void check(std::span<const Span> values, const char* what) const {
    bool fits = values.size() == counts.size();
    for (std::size_t i = 0; fits && i < counts.size(); ++i) fits = values[i].count() == counts[i];
    if (!fits)
      throw InvalidArgumentError(std::string(what) +
                                 ": pass the same parameters as to the constructor");
    if (left) throw InvalidArgumentError(std::string(what) + " after leave()");
    for (const Span& one : values) (void)one.template as<float>();
  }
};

ParameterClient::ParameterClient(std::vector<ServerAt> servers, std::span<const std::size_t> counts,
                                 const ServerOptions& options, std::chrono::milliseconds timeout)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.counts.assign(counts.begin(), counts.end());
  const auto all = static_cast<int>(servers.size());
  for (int server = 0; server < all; ++server) {
    const ServerAt& at = servers[static_cast<std::size_t>(server)];
    state.servers.emplace_back(
        at, WorkerFrames(counts, options, at.isolated_channel->rank(), server, all), timeout);
  }
  for (ServerConnection& server : state.servers) server.join();
}

ParameterClient::~ParameterClient() {
  if (state_->left || std::uncaught_exceptions() > 0) return;
  try {
    leave();
  } catch (...) {  // lost servers do not wait for this worker
  }
}

std::uint32_t ParameterClient::clock() const { return state_->servers.front().clock(); }

void ParameterClient::pull(std::span<const ValueSpan> weights) {
  state_->check(weights, "pull");
  state_->attempt([&] {
    for (ServerConnection& server : state_->servers) server.request_weights();
    for (ServerConnection& server : state_->servers) server.pull(weights);
  });
}

void ParameterClient::push(std::span<const ConstValueSpan> gradients) {
  state_->check(gradients, "push");
  check_finite(gradients, clock());
  state_->attempt([&] {
    for (ServerConnection& server : state_->servers) server.push(gradients);
  });
}

void ParameterClient::flush() {
  state_->attempt([&] {
    for (ServerConnection& server : state_->servers) server.flush();
  });
}

ClientStatistics ParameterClient::statistics() const {
  ClientStatistics all;
  for (const ServerConnection& server : state_->servers) {
    all.sent_bytes += server.statistics.sent_bytes;
    all.received_bytes += server.statistics.received_bytes;
  }
  return all;
}

void ParameterClient::abandon() noexcept {
  if (std::exchange(state_->left, true)) return;
  for (ServerConnection& server : state_->servers) server.leave_immediately();
}

void ParameterClient::leave() {
  if (std::exchange(state_->left, true)) return;
  for (ServerConnection& server : state_->servers)
    if (state_->failed)
      server.leave_immediately();
    else
      server.leave();
}

}  // namespace tersor
