// Implements channel.h: who waits, for how long, and what is said when it was too long.
#include "comm/transport/host/channel.h"

#include <algorithm>
#include <chrono>

namespace tersor::host {
namespace {

constexpr std::chrono::milliseconds kLongestQuestion{1000};  // who is there answers sooner
constexpr std::chrono::hours kLongestTimeout{24 * 365};      // so that deadlines do not overflow

// While a device copies: shorter than it takes for a chunk.
constexpr std::chrono::microseconds kCopyNap{20};

Clock::time_point deadline_of(const Operation& operation) {
  return Clock::now() + std::min<std::chrono::milliseconds>(operation.timeout, kLongestTimeout);
}

/// "rank 2", "rank 1 and rank 3"
std::string names(const Endpoint& endpoint, const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : " and ") + endpoint.name(rank);
  return text;
}

}  // namespace

HostTransfer::HostTransfer(std::shared_ptr<Channel> channel, const Operation& operation)
    : channel_(std::move(channel)), operation_(operation), deadline_(deadline_of(operation)) {}

HostTransfer::~HostTransfer() {
  if (!done_) channel_->forget(*this);
}

bool HostTransfer::test() { return channel_->test(*this); }

void HostTransfer::wait_synchronize() { channel_->wait(*this); }

ConstByteSpan HostTransfer::received(int) const { return {}; }

int HostTransfer::source() const {
  throw InvalidArgument(std::string(operation_.name) + ": only receive_any has a source");
}

void HostTransfer::require_done() const {
  if (!done_) throw InvalidArgument(std::string(operation_.name) + " is not done yet");
}

void HostTransfer::address(Batch& batch, std::uint32_t part, const Envelope& envelope) const {
  batch.name = operation_.name;
  batch.key = {.tag = operation_.tag, .part = part};
  batch.envelope = envelope;
  batch.keep_alive = operation_.keep_alive;
  if (operation_.block != nullptr) batch.block = *operation_.block;
}

void HostTransfer::cancel(Batch& batch) const {
  if (!batch.closed()) channel_->endpoint().cancel(batch);
}

Channel::Channel(std::shared_ptr<Endpoint> endpoint)
    : endpoint_(std::move(endpoint)),
      one_host_(std::ranges::all_of(endpoint_->hosts(), [](int host) { return host == 0; })) {}

void Channel::check(std::string_view name) const {
  if (!endpoint_->faulty()) return;
  endpoint_->progress();  // the others may not have heard of it yet
  throw TransportError(std::string(name) + ": the transport is poisoned: " + endpoint_->fault());
}

Handle Channel::start(std::unique_ptr<HostTransfer> transfer) {
  check(transfer->operation().name);
  under_way_.push_back(transfer.get());
  transfer->begin();
  check(transfer->operation().name);
  step(*transfer);
  return Handle(std::move(transfer));
}

bool Channel::step(HostTransfer& transfer) {
  if (!transfer.step()) return false;
  transfer.done_ = true;
  ++completions_;
  std::erase(under_way_, &transfer);
  return true;
}

void Channel::forget(HostTransfer& transfer) { std::erase(under_way_, &transfer); }

// What has come already goes on at once: to look for more may give the core away.
void Channel::step_all() {
  if (step_ready()) return;
  endpoint_->progress();
  step_ready();
}

bool Channel::step_ready() {
  const std::uint64_t before = completions_;
  for (std::size_t index = 0; index < under_way_.size();)
    if (!step(*under_way_[index])) ++index;
  return completions_ != before;
}

// A fault that ended something is told in the name of what has waited longest.
void Channel::move() {
  const std::string_view name =
      under_way_.empty() ? "progress" : under_way_.front()->operation().name;
  step_all();
  check(name);
}

// What a first look brings in is seen by the second one.
void Channel::progress() {
  endpoint_->progress();
  move();
}

bool Channel::test(HostTransfer& transfer) {
  if (transfer.done_ || step(transfer)) return true;
  endpoint_->progress();
  if (step(transfer)) return true;
  check(transfer.operation_.name);
  if (Clock::now() >= transfer.deadline_) fail_late(transfer);
  return false;
}

void Channel::wait(HostTransfer& transfer) {
  while (!transfer.done_) {
    step_all();
    if (transfer.done_) return;
    check(transfer.operation_.name);
    if (Clock::now() >= transfer.deadline_) fail_late(transfer);
    endpoint_->wait(sleep_until(transfer.deadline_));
  }
}

void Channel::wait_activity(Clock::time_point until) {
  for (;;) {
    move();
    const auto now = Clock::now();
    HostTransfer* urgent = most_urgent();
    if (urgent != nullptr && now >= urgent->deadline_) fail_late(*urgent);
    if (woken_.exchange(false) || completions_ != reported_ || now >= until) break;
    endpoint_->wait(sleep_until(urgent == nullptr ? until : std::min(until, urgent->deadline_)));
  }
  reported_ = completions_;
}

void Channel::wake() {
  woken_.store(true);
  endpoint_->wake();
}

HostTransfer* Channel::most_urgent() const {
  const auto first =
      std::min_element(under_way_.begin(), under_way_.end(),
                       [](auto* one, auto* other) { return one->deadline_ < other->deadline_; });
  return first == under_way_.end() ? nullptr : *first;
}

Clock::time_point Channel::sleep_until(Clock::time_point until) const {
  const bool copying = std::any_of(under_way_.begin(), under_way_.end(),
                                   [](const auto* transfer) { return transfer->copying(); });
  return copying ? std::min(until, Clock::now() + kCopyNap) : until;
}

// Whom it waits for in vain; or how one of those differs from whom it holds up.
std::string Channel::why_late(const HostTransfer& transfer) {
  const Operation& operation = transfer.operation_;
  const std::string within = " within " + std::to_string(operation.timeout.count()) + " ms";
  if (transfer.copying()) return "the operation's stream has not come to its copies" + within;
  const Question question{.name = operation.name,
                          .tag = operation.tag,
                          .patience = std::min(operation.timeout / 2, kLongestQuestion)};
  const Culprits culprits = endpoint_->culprits(question, transfer.missing());
  if (!culprits.difference.empty()) return culprits.difference;
  return "no message from " + names(*endpoint_, culprits.ranks) + within;
}

void Channel::fail_late(const HostTransfer& transfer) {
  const Operation& operation = transfer.operation_;
  const std::string cause =
      std::string(operation.name) + " on " + endpoint_->name(rank()) + ": " + why_late(transfer);
  endpoint_->raise(cause);
  if (endpoint_->fault() != cause) check(operation.name);  // there was another one meanwhile
  throw TransportError(cause);
}

}  // namespace tersor::host
