#include "comm/transport/tcp/connection_manager.h"

#include <tersor/error.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "kernels/host/signals.h"

namespace tersor::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kCrowdedPause = 20ms;
constexpr std::size_t kFewStrangers = 128;  // in addition to the number of possible callers
constexpr int kMostCallsPerPoll = 32;       // limit per poll, to handle handshakes in between

std::string refusal(const OutgoingCall& call, Verdict verdict) {
  const Hello& own = call.hello();
  const std::string peer = "rank " + std::to_string(own.to);
  switch (verdict) {
    case Verdict::kTaken:
      return peer + " has a connection with another process of rank " + std::to_string(own.from) +
             ": each process needs a rank of its own";
    case Verdict::kOtherRank:
      return "the process at " + text_of(call.to()) + " is not " + peer +
             ": the lists of addresses differ";
    case Verdict::kOtherRanks:
      return peer + " belongs to a group of another size than " + std::to_string(own.ranks) +
             " ranks";
    case Verdict::kOtherProtection:
      return peer +
             " has another value of protect (TERSOR_TCP_PROTECT in Python): set the same "
             "on all ranks";
    default:
      return peer + " has another number of connections with each rank than " +
             std::to_string(own.connections) + ": set the same connections on all ranks";
  }
}

}  // namespace

ConnectionManager::ConnectionManager(RankAddress& address, Reactor& wire)
    : address_(address),
      listener_(std::move(address.listener)),
      links_(address_.endpoints.size() * address_.connections),
      missing_(links_.size() - address_.connections),
      wire_(wire) {
  reactor_.watch(listener_->number(), *this);
  const kernels::SignalsBlocked quiet;
  try {
    thread_ = std::jthread([this] { serve(); });
  } catch (const std::system_error& error) {
    throw TransportError(std::string("cannot start the thread that makes connections: ") +
                         error.what());
  }
}

ConnectionManager::~ConnectionManager() {
  serving_ = false;
  reactor_.interrupt();
  thread_.join();
}

void ConnectionManager::serve() {
  while (serving_ && missing_ != 0) {
    reactor_.sleep(next_deadline());
    reactor_.poll();
    take_wishes();  // afterwards, because polling consumes the alarm of earlier requests
    finished_.clear();
    look_at_clock();
  }
  serving_ = false;
  strangers_.clear();
  strangers_count_ = 0;
  for (ConnectionProgress& each : links_) each.call.reset();
  reactor_.forget(listener_->number(), *this);
  listener_.reset();
}

void ConnectionManager::want(ConnectionId name) {
  {
    const std::lock_guard lock(mutex_);
    wishes_.push_back(name);
  }
  reactor_.interrupt();
}

void ConnectionManager::take_wishes() {
  std::vector<ConnectionId> wishes;
  {
    const std::lock_guard lock(mutex_);
    wishes.swap(wishes_);
  }
  for (const ConnectionId name : wishes) begin_call(name);
}

void ConnectionManager::begin_call(ConnectionId name) {
  ConnectionProgress& to = link(name);
  if (to.connected || to.call != nullptr) return;
  const Endpoint& endpoint = address_.endpoints[static_cast<std::size_t>(name.peer)];
  if (endpoint.port() == 0) return deliver({.name = name, .failure = "the rank does not listen"});
  const CallTimeouts timeouts{
      .refused = address_.listening_until,
      .away = std::max(address_.listening_until, Clock::now() + address_.timeout)};
  to.call = std::make_unique<OutgoingCall>(*this, hello_to(name), endpoint, timeouts);
  to.call->dial();
}

Hello ConnectionManager::hello_to(ConnectionId name) const {
  return {.from = rank(),
          .to = static_cast<std::uint32_t>(name.peer),
          .ranks = static_cast<std::uint32_t>(address_.endpoints.size()),
          .connections = static_cast<std::uint16_t>(address_.connections),
          .connection = static_cast<std::uint16_t>(name.connection),
          .protection = static_cast<std::uint64_t>(address_.protect)};
}

Clock::time_point ConnectionManager::next_deadline() const {
  Clock::time_point next = Clock::now() + (crowded_ ? Clock::duration(kCrowdedPause) : 1h);
  if (!strangers_.empty()) next = std::min(next, strangers_.front()->deadline());
  for (const ConnectionProgress& each : links_)
    if (each.call != nullptr) next = std::min(next, each.call->again());
  return next;
}

void ConnectionManager::look_at_clock() {
  const auto now = Clock::now();
  while (!strangers_.empty() && strangers_.front()->deadline() < now) drop_first();
  strangers_count_ = strangers_.size();
  for (ConnectionProgress& each : links_)
    if (each.call != nullptr && each.call->again() <= now) each.call->dial();
  finished_.clear();
  if (std::exchange(crowded_, false)) {
    reactor_.sleep(now + kCrowdedPause);
    reactor_.activate(*this);
  }
}

bool ConnectionManager::act() {
  more_ = true;
  for (int calls = 0; more_ && calls < kMostCallsPerPoll; ++calls) more_ = accept();
  return true;
}

// Without free descriptors, drops an unproven connection for the next.
bool ConnectionManager::accept() {
  auto socket = listener_->accept(crowded_);
  if (crowded_ || strangers_.size() >= kFewStrangers + links_.size()) drop_first();
  if (!socket) return false;
  try {
    strangers_.push_back(std::make_unique<IncomingCall>(*this, std::move(*socket)));
  } catch (const TransportError&) {
    drop_first();  // the system cannot watch another socket
  }
  return true;
}

void ConnectionManager::drop(IncomingCall& call) {
  strangers_.remove_if([&](const auto& stranger) { return stranger.get() == &call; });
}

void ConnectionManager::admit(IncomingCall& call) {
  const Hello caller = call.caller();
  const Verdict verdict = judge(caller);
  if (!call.answer(verdict) || verdict != Verdict::kWelcome) return;
  finish({static_cast<int>(caller.from), caller.connection}, call.release());
}

Verdict ConnectionManager::judge(const Hello& caller) {
  const std::uint32_t self = rank();
  if (caller.ranks != address_.endpoints.size()) return Verdict::kOtherRanks;
  if (caller.connections != address_.connections || caller.connection >= address_.connections)
    return Verdict::kOtherConnections;
  if (caller.protection != static_cast<std::uint64_t>(address_.protect))
    return Verdict::kOtherProtection;
  if (caller.to != self) return Verdict::kOtherRank;
  if (caller.from >= caller.ranks) return Verdict::kTaken;
  const ConnectionProgress& from = link({static_cast<int>(caller.from), caller.connection});
  if (from.connected) return Verdict::kTaken;
  return from.call != nullptr && self < caller.from ? Verdict::kCrossed : Verdict::kWelcome;
}

// If both ranks connected at once, the peer's connection is used.
void ConnectionManager::answered(OutgoingCall& call, Verdict verdict) {
  const ConnectionId name{static_cast<int>(call.hello().to), call.hello().connection};
  if (verdict == Verdict::kWelcome) return finish(name, call.release());
  if (verdict != Verdict::kCrossed) return failed(call, refusal(call, verdict));
  put_away(name);
}

void ConnectionManager::failed(OutgoingCall& call, const std::string& why) {
  const ConnectionId name{static_cast<int>(call.hello().to), call.hello().connection};
  put_away(name);
  deliver({.name = name, .failure = why});
}

void ConnectionManager::put_away(ConnectionId name) {
  auto call = std::exchange(link(name).call, nullptr);
  if (call == nullptr) return;
  call->hang_up();
  finished_.push_back(std::move(call));
}

// Ends this rank's own attempt if the peer's connection is used.
void ConnectionManager::finish(ConnectionId name, Socket socket) {
  put_away(name);
  link(name).connected = true;
  --missing_;
  deliver({.name = name, .socket = std::move(socket)});
}

void ConnectionManager::deliver(ConnectionResult connection) {
  {
    const std::lock_guard lock(mutex_);
    made_.push_back(std::move(connection));
    any_made_ = true;
  }
  wire_.interrupt();
}

std::vector<ConnectionResult> ConnectionManager::made() {
  if (!any_made_) return {};
  const std::lock_guard lock(mutex_);
  any_made_ = false;
  return std::exchange(made_, {});
}

}  // namespace tersor::tcp
