// Asks the awaited ranks for whom they wait, to blame the late rank rather than the waiting rank.
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "comm/transport/host/progress_engine.h"

namespace tersor::host {
namespace {

/// True if two ranks wait in different calls under the same tag. Sums with different counts are
/// detected at the first message.
bool differ(const Awaited& one, const Awaited& other) {
  return !one.ranks.empty() && !other.ranks.empty() && one.tag == other.tag &&
         (one.envelope.call != other.envelope.call ||
          one.envelope.signature != other.envelope.signature);
}

}  // namespace

// A rank with a waiting thread answers at once, on any thread. Other ranks stay silent.
void ProgressEngine::take_question(const Head& head, int peer) {
  questions_.emplace_back(head, peer);
  if (waiting_ > 0) return answer_questions();
  questioned_.store(true, std::memory_order_relaxed);
  signal_all();
}

void ProgressEngine::answer_questions() {
  if (questions_.empty()) return;
  questioned_.store(false, std::memory_order_relaxed);
  for (const auto& [question, peer] : std::exchange(questions_, {})) try {
      const auto channel = state_->channels.find(question.channel);
      const Awaited awaited = channel == state_->channels.end()
                                  ? Awaited{}
                                  : this->awaited(*channel->second, question.tag);
      const Head head{.envelope = awaited.envelope,
                      .channel = question.channel,
                      .tag = awaited.tag,
                      .part = question.part,
                      .kind = Kind::kAnswer};
      const Block ranks = in_block(std::as_bytes(std::span(awaited.ranks)));
      if (!ignores_arrivals_) send(peer, head, {ranks.bytes(), ranks});
    } catch (const std::exception& error) {
      raise_all(error.what());
    }
}

void ProgressEngine::take_answer(const Head& head, ConstByteSpan ranks) {
  std::vector<int> numbers(ranks.size() / sizeof(int));
  if (!numbers.empty()) std::memcpy(numbers.data(), ranks.data(), numbers.size() * sizeof(int));
  answers_[head.part] = {std::move(numbers), head.tag, head.envelope};
}

// The ranks awaited by receives and by sends, in the earliest call.
Awaited ProgressEngine::awaited(const ChannelState& channel, std::uint32_t tag) const {
  Awaited first = channel.match_queue.awaited(tag);
  for (const auto& [job, sending] : sends_) {
    const Batch& batch = *sending.batch;
    if (sending.channel != &channel || (batch.key.tag > tag && batch.key.tag != kUnorderedTag))
      continue;
    first.add(sending.peer, batch.key.tag, batch.envelope);
  }
  return first;
}

/// A search from the late ranks along the ranks they wait for. If a rank waits in vain for this
/// rank, the two calls differ.
class ProgressEngine::Inquiry {
 public:
  Inquiry(ProgressEngine& engine, ChannelState& channel, const Question& question)
      : engine_(engine), channel_(channel), question_(question) {}

  FailedRanks find(std::span<const int> late) {
    const Awaited own = [&] {
      const std::lock_guard lock(engine_.shared_lock_);
      return engine_.awaited(channel_, question_.tag);
    }();
    for (const int rank : late) waits_.push_back({{rank, question_.tag}, channel_.rank, own});
    while (!waits_.empty()) {
      ask();
      std::vector<Wait> next;
      for (const Wait& wait : waits_) {
        if (!agrees(wait)) return {{}, difference(wait), mismatch(wait)};
        follow(wait, next);
      }
      waits_ = std::move(next);
    }
    if (silent_.empty()) silent_.insert(late.begin(), late.end());
    return {{silent_.begin(), silent_.end()}, {}};
  }

 private:
  // A rank, and the tag of the calls waiting for the rank.
  using Asked = std::pair<int, std::uint32_t>;
  struct Wait {
    Asked asked;
    int by;
    Awaited before;  // the waiting rank's answer
  };

  // Asks all ranks at once, because dead ranks would delay a sequential search. If several ranks
  // are silent, most of them may only be slow and get more time.
  void ask() {
    constexpr int kMoreTimeouts = 4;
    std::unique_lock lock(engine_.shared_lock_);
    const Waiting here(engine_.waiting_);
    for (const Wait& wait : waits_)
      if (!answers_.contains(wait.asked)) put(wait.asked);
    const auto start = Clock::now();
    while (!channel_.faulty()) {
      take_answers();
      const auto until = start + question_.timeout * (open_.size() > 1 ? kMoreTimeouts : 1);
      if (open_.empty() || Clock::now() >= until) break;
      if (engine_.poll()) continue;
      lock.unlock();
      engine_.pause();
      lock.lock();
    }
    open_.clear();
  }

  // Treats a rank as silent until the rank answers. A rank silent before is not asked again.
  void put(const Asked& asked) {
    const auto [rank, tag] = asked;
    Awaited& answer = answers_[asked];
    if (rank == channel_.rank)
      answer = engine_.awaited(channel_, tag);
    else if (const auto number =
                 silent_.contains(rank) ? std::nullopt : engine_.put(channel_, rank, tag))
      open_[*number] = asked;
  }

  void take_answers() {
    std::erase_if(open_, [&](const auto& question) {
      auto found = engine_.answers_.extract(question.first);
      if (!found) return false;
      Awaited& answer = answers_[question.second] = std::move(found.mapped());
      std::erase_if(answer.ranks, [&](int rank) {
        return rank < 0 || rank >= static_cast<int>(channel_.members.size());
      });
      return true;
    });
  }

  bool agrees(const Wait& wait) const { return !differ(wait.before, answers_.at(wait.asked)); }

  void follow(const Wait& wait, std::vector<Wait>& next) {
    const int rank = wait.asked.first;
    const Awaited& answer = answers_.at(wait.asked);
    if (answer.ranks.empty()) silent_.insert(rank == channel_.rank ? wait.by : rank);
    if (!followed_.insert(wait.asked).second) return;
    for (const int other : answer.ranks) next.push_back({{other, answer.tag}, rank, answer});
  }

  std::string difference(const Wait& wait) const {
    const bool own = wait.by == channel_.rank;
    const std::string seen = own ? "" : ", seen from " + channel_.name(wait.by);
    return host::difference(wait.before.envelope, answers_.at(wait.asked).envelope,
                            channel_.name(wait.asked.first),
                            own ? question_.name : "an operation") +
           seen;
  }

  Mismatch mismatch(const Wait& wait) const {
    return {wait.by, wait.before.envelope.signature, wait.asked.first,
            answers_.at(wait.asked).envelope.signature};
  }

  ProgressEngine& engine_;
  ChannelState& channel_;
  const Question& question_;
  std::vector<Wait> waits_;
  std::map<Asked, Awaited> answers_;
  std::map<std::uint32_t, Asked> open_;  // by question number
  std::set<Asked> followed_;
  std::set<int> silent_;
};

FailedRanks ProgressEngine::failed_ranks(ChannelState& channel, const Question& question,
                                         std::span<const int> late) {
  return Inquiry(*this, channel, question).find(late);
}

// Returns the question's number, or nothing if no question can be sent now.
std::optional<std::uint32_t> ProgressEngine::put(ChannelState& channel, int rank,
                                                 std::uint32_t tag) try {
  if (channel.faulty() || !wire_->right_thread() || !wire_->running()) return std::nullopt;
  Head head = head_in(channel, Kind::kQuestion);
  head.tag = tag;
  head.part = ++asked_;
  send(channel.member(rank), head);
  return head.part;
} catch (const std::exception&) {
  return std::nullopt;  // treated as silent
}

}  // namespace tersor::host
