#include "comm/transport/host/progress_engine.h"

#include <algorithm>
#include <utility>

#include "comm/transport/host/hosts.h"

namespace tersor::host {
namespace {

using namespace std::chrono_literals;

constexpr auto kShortSleep = 1ms;     // for a thread with other work to poll
constexpr auto kGoodbyeTimeout = 1s;  // to receive the goodbyes of the others
constexpr auto kFlushTimeout = 10s;   // to deliver all sent messages
// Time for a fault to reach all responsive ranks, even on a busy machine.
constexpr auto kAnnounceTimeout = 1s;

/// Counts the calling thread as waiting while this object lives.
class WaitCounter {
 public:
  explicit WaitCounter(std::atomic<int>& threads) : threads_(threads) { ++threads_; }
  ~WaitCounter() { --threads_; }
  WaitCounter(const WaitCounter&) = delete;
  WaitCounter& operator=(const WaitCounter&) = delete;

 private:
  std::atomic<int>& threads_;
};

}  // namespace

ProgressEngine::State::State(std::unique_ptr<Wire> own, Actions& actions)
    : wire(std::move(own)),
      channels(wire->shared().shared_lock, wire->rank(), wire->ranks()),
      core{wire->rank(),
           wire->ranks(),
           wire->traits(),
           wire->shared().shared_lock,
           wire->shared().pools.host(),
           channels,
           actions},
      faults(core),
      flow(core.ranks, eager_window(core.traits.most_eager_bytes, core.ranks)),
      delivery(core, faults, flow),
      inquiry(core, delivery) {}

ProgressEngine::ProgressEngine(std::unique_ptr<Wire> wire)
    : state_([&] {
        const std::lock_guard lock(wire->shared().shared_lock);
        return new State(std::move(wire), *this);
      }()),
      wire_(*state_->wire),
      shared_lock_(wire_.shared().shared_lock),
      world_(state_->channels.world()),
      host_names_(wire_.host_names()) {
  wire_.start({.take = [this](Wire::Arrival arrival) { on_arrival(std::move(arrival)); },
               .lost = [this](int peer, const std::string& cause) { on_loss(peer, cause); }});
}

ProgressEngine::~ProgressEngine() {
  if (!ended_) {
    const Wire::Shutdown shutdown = exchange_shutdown();
    const std::lock_guard lock(shared_lock_);
    ended_ = wire_.end(shutdown);
  }
  if (!*ended_) static_cast<void>(state_.release());
}

void ProgressEngine::close() {
  {
    const Locked locked(*this);
    if (std::exchange(closed_, true)) return;
    locked->channels.open_channels = 1;
  }
  leave(world_);
  const Wire::Shutdown shutdown = exchange_shutdown();
  const Locked locked(*this);
  for (const auto& domain : locked->channels.domains())
    abort(*domain, "rank " + std::to_string(wire_.rank()) + " closed the transport");
  ended_ = wire_.end(shutdown);
}

Wire::Shutdown ProgressEngine::exchange_shutdown() {
  const bool agreed = !traits().keeps_sent && wire_.running() && exchange_goodbyes();
  return agreed ? Wire::Shutdown::kCoordinated : Wire::Shutdown::kUncoordinated;
}

// Waits for the goodbyes of the others and for outgoing messages, to lose no message. Returns true
// if all ranks are gone and nothing is under way.
bool ProgressEngine::exchange_goodbyes() {
  wire_.record_use();
  Locked locked(*this);
  if (!wire_.right_thread()) return false;
  const auto start = Clock::now();
  const auto all_done = [&] { return locked->faults.is_alone() && wire_.quiet(); };
  poll_until(locked, [&] {
    const Clock::duration within = wire_.quiet() ? Clock::duration(kGoodbyeTimeout) : kFlushTimeout;
    return world_.faulty() || all_done() || Clock::now() >= start + within;
  });
  if (world_.faulty()) announce_until(Clock::now() + kGoodbyeTimeout);
  return !world_.faulty() && all_done();
}

// A network error fails all channels.
template <typename Call>
void ProgressEngine::guard(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    state_->faults.fail_all(error.what());
  }
}

// Without a running network, no peer can be notified. After a fault, no peer needs a notification,
// except with isolated channels. Then the network stays in use, and channel states are freed after
// the last member left.
void ProgressEngine::leave(ChannelState& channel) {
  if (!wire_.running()) return;
  wire_.record_use();
  const Locked locked(*this);
  const bool is_last = --locked->channels.open_channels == 0;
  if (is_last) locked->flow.drop([](int, std::uint64_t) { return true; });
  if (!wire_.right_thread()) return;
  if (ended_ || (channel.faulty() && !locked->channels.any_isolated())) return announce_more();
  const Head head{.channel = channel.id,
                  .part = is_last ? 1u : 0u,
                  .from = channel.rank,
                  .type = MessageType::kLeave};
  guard([&] {
    for (int peer = 0; peer < wire_.ranks(); ++peer)
      if (peer != wire_.rank() && (is_last || std::ranges::binary_search(channel.members, peer)))
        send(peer, head, {});
    poll();
  });
}

// After a fork, a nonexistent thread may hold the lock.
void ProgressEngine::release(ChannelState& channel) {
  if (&channel == &world_ || !wire_.running()) return;
  const Locked locked(*this);
  channel.released = true;
  guard([&] { locked->delivery.free_if_unused(channel); });
}

// A send-only batch learns of departed ranks only here.
void ProgressEngine::post(ChannelState& channel, Batch& batch) {
  wire_.check_thread();
  batch.open.store(static_cast<std::uint32_t>(batch.incoming.size()), std::memory_order_relaxed);
  state_->delivery.pack(batch);
  const Locked locked(*this);
  if (batch.incoming.empty()) poll();
  if (channel.faulty()) return;
  if (batch.agreement != nullptr)
    channel.agreements.insert(batch.envelope.signature, *batch.agreement);
  locked->delivery.check_announced(channel, batch);
  guard([&] { locked->delivery.post(channel, batch); });
}

// Stops as soon as a batch is closed, because a further poll may yield the core.
void ProgressEngine::progress(ChannelState& channel) {
  wire_.check_thread();
  const bool is_due = state_->faults.next_deadline() != Clock::time_point::max();
  if (traits().waiting == Wire::Waiting::kSleep && !state_->inquiry.has_questions() && !is_due)
    return;
  const Locked locked(*this);
  channel.next_poll = ChannelState::kAwake;
  while (poll() && !shared_lock_.will_signal(channel.event)) {
  }
}

void ProgressEngine::wait(ChannelState& channel, std::uint32_t seen, Clock::time_point until) {
  wire_.check_thread();
  const WaitCounter counter(waiting_threads_);
  until = std::min(until, state_->faults.next_deadline());
  if (!state_->core.moves_alone()) return poll_until(channel, seen, until);
  const bool polls = traits().waiting == Wire::Waiting::kSleepAndPoll;
  if (polls) {
    const Locked locked(*this);
    poll();
    locked->delivery.update_next_poll(channel);
    until = std::min(until, channel.next_poll);
  }
  channel.event.wait(seen, until, polls ? Event::WaitMode::kSleep : Event::WaitMode::kYieldFirst);
}

void ProgressEngine::poll_until(ChannelState& channel, std::uint32_t seen,
                                Clock::time_point until) {
  channel.backoff.reset();
  for (Clock::time_point now{}; channel.event.signals() == seen && now < until;) {
    bool progressed = false;
    {
      const std::lock_guard lock(shared_lock_);
      progressed = poll();
    }
    if (progressed)
      channel.backoff.reset();
    else if (traits().waiting != Wire::Waiting::kRest)
      now = channel.backoff.wait(channel.event, seen, until,
                                 traits().waiting == Wire::Waiting::kPollYielding);
    else
      now = channel.backoff.wait_for_event([&] {
        channel.event.wait_externally(seen, [&](int alarm) {
          // Without a descriptor for an alarm, no signal ends the rest.
          wire_.rest(alarm, alarm < 0 ? std::min(until, Clock::now() + kShortSleep) : until);
        });
      });
  }
}

void ProgressEngine::poll_until(Locked& locked, const std::function<bool()>& done) {
  while (!done()) {
    if (poll()) continue;
    locked.lock_.unlock();
    pause();
    locked.lock_.lock();
  }
}

void ProgressEngine::pause() const {
  if (traits().waiting == Wire::Waiting::kRest)
    wire_.rest(-1, Clock::now() + kShortSleep);
  else
    wire_.pause();
}

void ProgressEngine::resolve_mismatch(ChannelState& channel, const Mismatch& mismatch,
                                      const std::string& cause) {
  Locked locked(*this);
  locked->faults.compare_options(channel, mismatch, cause);
  const WaitCounter counter(waiting_threads_);
  poll_until(locked,
             [&] { return channel.faulty() || !locked->faults.is_comparing(*channel.domain); });
}

FailedRanks ProgressEngine::failed_ranks(ChannelState& channel, const Question& question,
                                         std::span<const int> late) {
  Locked locked(*this);
  const WaitCounter counter(waiting_threads_);
  return locked->inquiry.find(channel, question, late,
                              [&](const auto& done) { poll_until(locked, done); });
}

std::vector<int> ProgressEngine::hosts(const ChannelState& channel) const {
  std::vector<int> names;
  for (const int member : channel.members)
    names.push_back(host_names_[static_cast<std::size_t>(member)]);
  return number_hosts(names);
}

// Answers questions and makes progress in the network. Returns true if anything progressed.
bool ProgressEngine::poll() {
  if (state_->faults.ignores_arrivals()) {
    announce_more();
    return false;
  }
  bool progressed = true;
  guard([&] {
    state_->inquiry.answer_questions();
    progressed = wire_.poll();
    if (state_->faults.next_deadline() != Clock::time_point::max())
      progressed = state_->faults.run_due(Clock::now()) || progressed;
  });
  return progressed;
}

void ProgressEngine::on_arrival(Wire::Arrival arrival) {
  if (state_->faults.ignores_arrivals()) return;
  const Head head = head_of(arrival.head);
  if (!arrival.whole && (head.type == MessageType::kFault || head.type == MessageType::kOptions))
    return receive_fully(std::move(arrival));
  switch (head.type) {
    case MessageType::kMessage:
    case MessageType::kAnnounced:
      return state_->delivery.on_message(head, std::move(arrival));
    case MessageType::kRequest:
      if (auto payload = state_->flow.take_request(arrival.peer, head.part))
        send(arrival.peer, {.part = head.part, .type = MessageType::kBody}, *std::move(payload));
      return;
    case MessageType::kBody:
      return state_->delivery.on_body(head, std::move(arrival));
    case MessageType::kCredits:
      return state_->flow.on_credits(arrival.peer, head.envelope.count);
    case MessageType::kFault:
      return on_fault(head, arrival);
    case MessageType::kLeave:
      return on_leave(head, arrival.peer);
    case MessageType::kQuestion:
      return state_->inquiry.on_question(head, arrival.peer, waiting_threads_ > 0);
    case MessageType::kAnswer:
      return state_->inquiry.on_answer(head, arrival.payload.bytes());
    case MessageType::kOptions:
      return state_->faults.on_options(head, arrival);
    case MessageType::kCompare:
      return state_->faults.on_compare(head, arrival);
  }
}

// A long message about a fault: its payload comes by itself.
void ProgressEngine::receive_fully(Wire::Arrival arrival) {
  const auto message = std::make_shared<Wire::Arrival>(std::move(arrival));
  if (!message->payload) message->payload = pools().host().take(message->head.payload_bytes());
  auto job = std::make_shared<Wire::Job>();
  job->memory = message->payload;
  job->done = [this, message](const Wire::Job&) {
    message->whole = true;
    on_arrival(std::move(*message));
  };
  wire_.receive_rest(*message, message->payload.writable(), job);
}

void ProgressEngine::on_leave(const Head& head, int peer) {
  ChannelState& channel = state_->channels.at(head.channel);
  channel.departed.insert(peer);
  if (head.part == 0) return state_->delivery.on_leave(channel, peer);
  state_->faults.record_departure(peer);
  state_->delivery.on_departure(peer);
}

// Forwards a fault to the ranks able to detect this rank's end, possibly before they receive the
// fault.
void ProgressEngine::on_fault(const Head& head, const Wire::Arrival& arrival) {
  const std::shared_ptr<FaultDomain> domain = state_->channels.domain_of(head.channel);
  if (domain->faulty) return;
  abort(*domain, parse_fault(arrival));
  for (const int peer : domain->members)
    if (peer != wire_.rank() && peer != arrival.peer && wire_.exit_is_visible_to(peer))
      state_->faults.announce(*domain, peer, arrival.payload);
}

// Sleeping threads must wake up in time to announce the loss.
void ProgressEngine::on_loss(int peer, const std::string& cause) {
  if (!state_->faults.record_loss(peer, cause)) return;
  state_->delivery.fail_sends(peer);
  state_->delivery.on_departure(peer);
  state_->channels.signal_all();
}

void ProgressEngine::send(int peer, Head head, Wire::Payload payload) {
  if (head.type != MessageType::kAnnounced) head.envelope.bytes = payload.bytes.size();
  wire_.send(peer, to_message_head(head), std::move(payload));
}

void ProgressEngine::receive(IncomingMessage& message) {
  auto job = std::make_shared<Wire::Job>();
  job->memory = message.payload;
  job->done = [this, &message](const Wire::Job&) { state_->delivery.on_payload(message); };
  wire_.receive_rest(message.arrival, message.payload.writable(), job);
}

void ProgressEngine::fail(FaultDomain& domain, const Fault& fault) {
  if (domain.faulty) return;
  abort(domain, state_->faults.cause(domain, fault));
  announce(domain);
}

// Copies unsent payloads first: once the domain is faulty, calls throw, and their callers may free
// the payloads.
void ProgressEngine::abort(FaultDomain& domain, const Fault& fault) {
  if (domain.faulty) return;
  state_->delivery.copy_unsent(domain);
  state_->faults.abort(domain, fault);
  if (state_->faults.ignores_arrivals()) wire_.record_abort();
  state_->delivery.discard(domain);
  state_->channels.signal_all();
}

// Announces a fault to all ranks of a domain, on a thread with network access. On isolated
// channels, no other rank is concerned.
void ProgressEngine::announce(const FaultDomain& domain) {
  if (domain.kind == FaultDomain::Kind::kIsolated) return;
  unannounced_ = !wire_.right_thread();
  if (unannounced_ || !wire_.running()) return;
  state_->faults.announce(domain);
  announce_until(Clock::now() + kAnnounceTimeout);
}

// A fault may be queued behind many messages. The announcement progresses in every call.
void ProgressEngine::announce_more() {
  if (!wire_.right_thread()) return;
  if (unannounced_) return announce(*world_.domain);
  if (state_->faults.all_announced()) return;
  try {
    wire_.poll();
  } catch (const std::exception&) {
    // the fault is known on this rank; unreachable ranks detect it at their deadlines
  }
}

void ProgressEngine::announce_until(Clock::time_point until) {
  if (unannounced_) announce(*world_.domain);
  while (!state_->faults.all_announced() && Clock::now() < until) {
    announce_more();
    pause();
  }
}

}  // namespace tersor::host
