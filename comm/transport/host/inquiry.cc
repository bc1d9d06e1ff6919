#include "comm/transport/host/inquiry.h"

#include <cstring>

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

void Inquiry::take_question(const Head& head, int peer, bool is_waiting) {
  questions_.emplace_back(head, peer);
  if (is_waiting) return answer_questions();
  is_questioned_.store(true, std::memory_order_relaxed);
  core_.channels.signal_all();
}

void Inquiry::answer_questions() {
  if (questions_.empty()) return;
  is_questioned_.store(false, std::memory_order_relaxed);
  for (const auto& [question, peer] : std::exchange(questions_, {})) {
    const ChannelState* channel = core_.channels.find(question.channel);
    const Awaited awaited =
        channel == nullptr ? Awaited{} : delivery_.awaited(*channel, question.tag);
    const Head head{.envelope = awaited.envelope,
                    .channel = question.channel,
                    .tag = awaited.tag,
                    .part = question.part,
                    .kind = Kind::kAnswer};
    const Block ranks = core_.pool.copy(std::as_bytes(std::span(awaited.ranks)));
    core_.actions.send(peer, head, {ranks.bytes(), ranks});
  }
}

void Inquiry::take_answer(const Head& head, ConstByteSpan ranks) {
  std::vector<int> numbers(ranks.size() / sizeof(int));
  if (!numbers.empty()) std::memcpy(numbers.data(), ranks.data(), numbers.size() * sizeof(int));
  answers_[head.part] = {std::move(numbers), head.tag, head.envelope};
}

/// A search from the late ranks along the ranks they wait for. If a rank waits in vain for this
/// rank, the two calls differ.
class Inquiry::Search {
 public:
  Search(Inquiry& inquiry, const ChannelState& channel, const Question& question)
      : inquiry_(inquiry), channel_(channel), question_(question) {}

  FailedRanks find(std::span<const int> late, const PollUntil& poll_until) {
    const Awaited own = inquiry_.delivery_.awaited(channel_, question_.tag);
    for (const int rank : late) waits_.push_back({{rank, question_.tag}, channel_.rank, own});
    while (!waits_.empty()) {
      // Asks all ranks at once, because dead ranks would delay a sequential search.
      for (const Wait& wait : waits_)
        if (!answers_.contains(wait.asked)) put(wait.asked);
      start_ = Clock::now();
      poll_until([this] { return channel_.faulty() || take_answers(); });
      open_.clear();
      std::vector<Wait> next;
      for (const Wait& wait : waits_) {
        if (differ(wait.before, answers_.at(wait.asked))) return difference(wait);
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

  // Treats a rank as silent until the rank answers. A rank silent before is not asked again.
  void put(const Asked& asked) try {
    const auto [rank, tag] = asked;
    Awaited& answer = answers_[asked];
    if (rank == channel_.rank) answer = inquiry_.delivery_.awaited(channel_, tag);
    const bool asks = rank != channel_.rank && !silent_.contains(rank) && !channel_.faulty();
    if (!asks || !inquiry_.core_.actions.may_send()) return;
    const std::uint32_t number = ++inquiry_.asked_;
    inquiry_.core_.actions.send(channel_.member(rank), {.channel = channel_.id,
                                                        .tag = tag,
                                                        .part = number,
                                                        .from = channel_.rank,
                                                        .kind = Kind::kQuestion});
    open_[number] = asked;
  } catch (const std::exception&) {
    // The rank stays silent.
  }

  // Returns true if no answer is missing, or at the timeout. If several ranks are silent, most of
  // them may only be slow and get more time.
  bool take_answers() {
    constexpr int kMoreTimeouts = 4;
    std::erase_if(open_, [&](const auto& question) {
      auto found = inquiry_.answers_.extract(question.first);
      if (!found) return false;
      Awaited& answer = answers_[question.second] = std::move(found.mapped());
      std::erase_if(answer.ranks, [&](int rank) {
        return rank < 0 || rank >= static_cast<int>(channel_.members.size());
      });
      return true;
    });
    const auto until = start_ + question_.timeout * (open_.size() > 1 ? kMoreTimeouts : 1);
    return open_.empty() || Clock::now() >= until;
  }

  void follow(const Wait& wait, std::vector<Wait>& next) {
    const int rank = wait.asked.first;
    const Awaited& answer = answers_.at(wait.asked);
    if (answer.ranks.empty()) silent_.insert(rank == channel_.rank ? wait.by : rank);
    if (!followed_.insert(wait.asked).second) return;
    for (const int other : answer.ranks) next.push_back({{other, answer.tag}, rank, answer});
  }

  FailedRanks difference(const Wait& wait) const {
    const bool own = wait.by == channel_.rank;
    const Envelope &before = wait.before.envelope, &other = answers_.at(wait.asked).envelope;
    const int rank = wait.asked.first;
    const std::string text =
        host::difference(before, other, channel_.name(rank), own ? question_.name : "an operation");
    return {{},
            own ? text : text + ", seen from " + channel_.name(wait.by),
            {wait.by, before.signature, rank, other.signature}};
  }

  Inquiry& inquiry_;
  const ChannelState& channel_;
  const Question& question_;
  Clock::time_point start_;
  std::vector<Wait> waits_;
  std::map<Asked, Awaited> answers_;
  std::map<std::uint32_t, Asked> open_;  // by question number
  std::set<Asked> followed_;
  std::set<int> silent_;
};

FailedRanks Inquiry::find(const ChannelState& channel, const Question& question,
                          std::span<const int> late, const PollUntil& poll_until) {
  return Search(*this, channel, question).find(late, poll_until);
}

}  // namespace tersor::host
