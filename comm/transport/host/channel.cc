// Implements channel.h: waiting, deadlines, and the error texts of timeouts.
#include "comm/transport/host/channel.h"

#include <algorithm>
#include <chrono>

#include "comm/transport/timeout.h"

namespace tersor::host {
namespace {

constexpr std::chrono::milliseconds kMaxQuestionTimeout{1000};  // responsive ranks answer sooner
constexpr std::chrono::hours kMaxTimeout{24 * 365};             // to prevent overflow of deadlines

// Polling interval during device copies: shorter than the copy of a chunk.
constexpr std::chrono::microseconds kCopyPollInterval{20};

Clock::time_point deadline_of(const Operation& operation) {
  return Clock::now() + std::min<std::chrono::milliseconds>(operation.timeout, kMaxTimeout);
}

std::string timeout_text(const HostTransfer& transfer) {
  return " within " + std::to_string(transfer.operation().timeout.count()) + " ms";
}

/// "no message from rank 1 and rank 3 within 500 ms"
std::string no_message(const HostTransfer& transfer, const std::vector<int>& ranks) {
  const Channel& channel = transfer.channel();
  std::string text, reasons;
  for (const int rank : ranks) {
    text += (text.empty() ? "" : " and ") + channel.name(rank);
    reasons += channel.engine().lock()->wire->missing_message_reason(channel.state().member(rank));
  }
  return "no message from " + text + timeout_text(transfer) + reasons;
}

[[noreturn]] void throw_fault(const std::string& what, const Fault& fault) {
  if (fault.is_timeout) throw TimeoutError(what);
  throw TransportError(what, fault.differences);
}

}  // namespace

HostTransfer::HostTransfer(const Start& start)
    : channel_(start.channel),
      operation_(start.operation),
      envelope_(start.envelope),
      deadline_(deadline_of(operation_)) {}

HostTransfer::~HostTransfer() {
  if (!done_) channel_->remove(*this);
}

bool HostTransfer::test() { return channel_->test(*this); }

void HostTransfer::wait_synchronize() { channel_->wait(*this); }

int HostTransfer::source() const {
  throw InvalidArgumentError(std::string(operation_.name) + ": only receive_any has a source");
}

std::string HostTransfer::cause(std::string_view reason) const {
  return std::string(operation_.name) + " on " + channel_->name(channel_->rank()) + ": " +
         std::string(reason);
}

std::string HostTransfer::raise(std::string_view reason) const {
  std::string text = cause(reason);
  channel_->engine().raise(channel_->state(), text);
  return text;
}

void HostTransfer::resolve_mismatch(const Mismatch& mismatch, std::string_view reason) const {
  channel_->engine().resolve_mismatch(channel_->state(), mismatch, cause(reason));
}

void HostTransfer::require_done() const {
  if (!done_) throw InvalidArgumentError(std::string(operation_.name) + " is not done yet");
}

void HostTransfer::initialize(Batch& batch, std::uint32_t part) const {
  batch.name = operation_.name;
  batch.key = {.tag = operation_.tag, .part = part};
  batch.envelope = envelope_;
  batch.agreement = &operation_.agreement;
  batch.keep_alive = operation_.keep_alive;
  if (operation_.block != nullptr) batch.block = *operation_.block;
}

void HostTransfer::use_caller_memory(Batch& batch) const {
  if (batch.keep_alive == nullptr && channel_->engine().traits().borrows)
    batch.keep_alive = {batch.keep_alive, this};  // until `cancel`, this operation is the owner
}

void HostTransfer::cancel(Batch& batch) const {
  if (!batch.closed()) channel_->engine().lock()->delivery.cancel(channel_->state(), batch);
}

Channel::Channel(std::shared_ptr<ProgressEngine> engine, ChannelState& state)
    : engine_(std::move(engine)),
      state_(state),
      one_host_(std::ranges::all_of(engine_->hosts(state), [](int host) { return host == 0; })) {}

void Channel::poll() {
  seen_ = state_.event.signals();
  engine_->progress(state_);
}

void Channel::check(std::string_view name) {
  if (!state_.faulty()) return;
  poll();  // announces the fault, if other ranks do not know the fault yet
  const Fault fault = this->fault();
  throw_fault(std::string(name) + ": the transport was aborted: " + fault.text, fault);
}

Handle Channel::start(std::unique_ptr<HostTransfer> transfer) {
  check(transfer->operation().name);
  active_.push_back(transfer.get());
  transfer->begin();
  check(transfer->operation().name);
  step(*transfer);
  return Handle(std::move(transfer));
}

bool Channel::step(HostTransfer& transfer) {
  if (!transfer.step()) return false;
  transfer.done_ = true;
  ++completions_;
  std::erase(active_, &transfer);
  return true;
}

// Steps operations first, because polling for more messages may yield the core.
void Channel::step_all() {
  if (step_ready()) return;
  poll();
  step_ready();
}

bool Channel::step_ready() {
  const std::uint64_t before = completions_;
  for (std::size_t index = 0; index < active_.size();)
    if (!step(*active_[index])) ++index;
  return completions_ != before;
}

// The error of a fault names the operation that has waited longest.
void Channel::make_progress() {
  const std::string_view name = active_.empty() ? "progress" : active_.front()->operation().name;
  step_all();
  check(name);
}

// The second poll steps the operations enabled by the first.
void Channel::progress() {
  poll();
  make_progress();
}

// Returns true if the operation is done.
bool Channel::advance(HostTransfer& transfer) {
  if (transfer.done_ || step(transfer)) return true;
  poll();
  if (step(transfer)) return true;
  check(transfer.operation_.name);
  if (Clock::now() < transfer.deadline_) return false;
  on_timeout(transfer);
  return step(transfer);
}

bool Channel::test(HostTransfer& transfer) {
  const bool done = advance(transfer);
  if (done) transfer.check();
  return done;
}

void Channel::wait(HostTransfer& transfer) {
  while (!transfer.done_) {
    step_all();
    if (transfer.done_) break;
    check(transfer.operation_.name);
    if (Clock::now() >= transfer.deadline_)
      on_timeout(transfer);
    else
      sleep(transfer.deadline_);
  }
  transfer.check();
}

void Channel::wait_activity(Clock::time_point until) {
  for (;;) {
    make_progress();
    const auto now = Clock::now();
    HostTransfer* next = next_to_expire();
    if (next != nullptr && now >= next->deadline_) on_timeout(*next);
    if (woken_.exchange(false) || completions_ != reported_ || now >= until) break;
    sleep(next == nullptr ? until : std::min(until, next->deadline_));
  }
  reported_ = completions_;
}

void Channel::wake() {
  woken_.store(true);
  state_.event.signal();
}

HostTransfer* Channel::next_to_expire() const {
  const auto first = std::min_element(active_.begin(), active_.end(), [](auto* one, auto* other) {
    return one->deadline_ < other->deadline_;
  });
  return first == active_.end() ? nullptr : *first;
}

void Channel::sleep(Clock::time_point until) {
  const bool copying = std::any_of(active_.begin(), active_.end(),
                                   [](const auto* transfer) { return transfer->copying(); });
  engine_->wait(state_, seen_, copying ? std::min(until, Clock::now() + kCopyPollInterval) : until);
}

// Explains a timeout: the ranks to blame, or how one call differs from another.
FailedRanks Channel::diagnose_timeout(const HostTransfer& transfer) {
  const Operation& operation = transfer.operation_;
  if (transfer.copying())
    return {{}, "the operation's stream did not reach its copies" + timeout_text(transfer)};
  const Question question{.name = operation.name,
                          .tag = operation.tag,
                          .timeout = std::min(operation.timeout / 2, kMaxQuestionTimeout)};
  FailedRanks failed_ranks = engine_->failed_ranks(state_, question, transfer.missing());
  if (failed_ranks.difference.empty())
    failed_ranks.difference = no_message(transfer, failed_ranks.ranks);
  return failed_ranks;
}

// On an isolated channel, the operation fails alone and asks no rank, because a late rank may be
// lost.
void Channel::on_timeout(HostTransfer& transfer) {
  if (state_.is_isolated()) {
    const std::vector<int> late = transfer.missing();
    const int peer = late.size() == 1 ? late.front() : kAnyRank;
    return transfer.end(
        std::make_exception_ptr(PeerLostError(transfer.cause(no_message(transfer, late)), peer)));
  }
  const FailedRanks failed_ranks = diagnose_timeout(transfer);
  if (const Mismatch& found = failed_ranks.mismatch; found.signature != found.other_signature) {
    transfer.resolve_mismatch(failed_ranks.mismatch, failed_ranks.difference);
    check(transfer.operation_.name);
  }
  Fault fault = transfer.cause(failed_ranks.difference);
  fault.is_timeout = !failed_ranks.ranks.empty();
  engine_->raise(state_, fault);
  // Throws an earlier fault, if another one was raised meanwhile.
  if (this->fault().text != fault.text) check(transfer.operation_.name);
  throw_fault(fault.text, fault);
}

}  // namespace tersor::host
