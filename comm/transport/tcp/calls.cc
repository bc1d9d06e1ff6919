#include "comm/transport/tcp/calls.h"

#include <tersor/error.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "comm/transport/tcp/connection_manager.h"

namespace tersor::tcp {
namespace {

using namespace std::chrono_literals;

constexpr int kMostEndedCalls = 20;  // an overloaded peer may drop some connections
constexpr auto kUnreachedPause = 80ms;
constexpr auto kShortestPause = 20ms;
constexpr auto kLongestPause = 1s;

Clock::duration pause_after(int calls) {
  return std::min<Clock::duration>(kShortestPause * (1 << std::min(calls, 10)), kLongestPause);
}

}  // namespace

IncomingCall::IncomingCall(ConnectionManager& owner, Socket socket)
    : owner_(owner), socket_(std::move(socket)), answerer_(owner.secret(), owner.rank()) {
  owner_.reactor().watch(socket_.number(), *this);
}

IncomingCall::~IncomingCall() {
  if (socket_.open()) owner_.reactor().forget(socket_.number(), *this);
}

Socket IncomingCall::release() {
  owner_.reactor().forget(socket_.number(), *this);
  socket_.protect(owner_.protection(), answerer_.keys());
  return std::move(socket_);
}

bool IncomingCall::act() {
  if (readable_ && !listen()) owner_.drop(*this);
  return true;
}

// Returns false if the call must end.
bool IncomingCall::listen() {
  while (!answerer_.space().empty()) {
    const Moved moved = socket_.read(answerer_.space());
    if (!moved.error.empty()) return false;
    if (moved.dry && moved.bytes == 0) return !(readable_ = false);
    const bool sound = answerer_.came(moved.bytes);
    if (!answerer_.reply().empty() && !socket_.write_all(answerer_.reply())) return false;
    if (!sound) return false;
  }
  owner_.admit(*this);
  return false;
}

OutgoingCall::OutgoingCall(ConnectionManager& owner, const Hello& hello, const Endpoint& to,
                           const CallTimeouts& timeouts)
    : owner_(owner), hello_(hello), to_(to), timeouts_(timeouts) {}

void OutgoingCall::dial() {
  again_ = Clock::time_point::max();
  Refusal refusal;
  socket_.emplace(Socket::connect(to_, refusal));
  try {
    if (!refusal) owner_.reactor().watch(socket_->number(), *this);
  } catch (const TransportError&) {
    refusal.code = ENOMEM;  // the system cannot watch another socket
  }
  if (refusal) not_reached(refusal);
}

void OutgoingCall::hang_up() {
  if (socket_ && socket_->open()) owner_.reactor().forget(socket_->number(), *this);
  socket_.reset();
  caller_.reset();
  again_ = Clock::time_point::max();
}

Socket OutgoingCall::release() {
  owner_.reactor().forget(socket_->number(), *this);
  socket_->protect(owner_.protection(), caller_->keys());
  return std::move(*socket_);
}

bool OutgoingCall::act() {
  if (!socket_) return false;
  const bool begins = !caller_;
  if (begins && !(writable_ && connect())) return false;
  if (!caller_) return true;                // not reached
  return (readable_ && prove()) || begins;  // the reactor reports a peer that speaks first once
}

bool OutgoingCall::connect() {
  if (const Refusal refusal = socket_->refusal()) return not_reached(refusal);
  caller_.emplace(owner_.secret(), hello_);
  return socket_->write_all(caller_->opening()) || hung_up("it was closed");
}

bool OutgoingCall::prove() {
  while (!caller_->space().empty()) {
    const Moved moved = socket_->read(caller_->space());
    if (!moved.error.empty()) return hung_up(moved.error);
    if (moved.dry && moved.bytes == 0) return readable_ = false;
    if (!caller_->came(moved.bytes)) {
      owner_.failed(*this, "the process at " + text_of(to_) +
                               " does not know the secret of this group: the process is not a "
                               "rank of the group, has an old secret, or was given "
                               "another secret (TERSOR_SECRET in Python)");
      return true;
    }
    if (!caller_->reply().empty() && !socket_->write_all(caller_->reply()))
      return hung_up("it was closed");
  }
  owner_.answered(*this, *caller_->verdict());
  return true;
}

// A rank not listening yet refuses connections.
bool OutgoingCall::not_reached(const Refusal& why) {
  const auto now = Clock::now();
  hang_up();
  if (now < (why.may_pass() ? timeouts_.away : timeouts_.refused))
    again_ = now + kUnreachedPause;
  else
    owner_.failed(*this, "it cannot be reached at " + text_of(to_) + ": " + why.text());
  return true;
}

// An overloaded rank ends connections.
bool OutgoingCall::hung_up(const std::string& why) {
  hang_up();
  if (++ended_calls_ < kMostEndedCalls)
    again_ = Clock::now() + pause_after(ended_calls_);
  else
    owner_.failed(
        *this,
        "the process at " + text_of(to_) +
            " ends each connection before a proof that the process is a rank of this group: " +
            why);
  return true;
}

}  // namespace tersor::tcp
