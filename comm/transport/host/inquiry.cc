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

void Inquiry::on_question(const Head& head, int peer, bool is_waiting) {
  questions_.emplace_back(head, peer);
  if (is_waiting) return answer_questions();
  has_questions_.store(true, std::memory_order_relaxed);
  core_.channels.signal_all();
}

void Inquiry::answer_questions() {
  if (questions_.empty()) return;
  has_questions_.store(false, std::memory_order_relaxed);
  for (const auto& [question, peer] : std::exchange(questions_, {})) {
    const ChannelState* channel = core_.channels.find(question.channel);
    const Awaited awaited =
        channel == nullptr ? Awaited{} : delivery_.awaited(*channel, question.tag);
    const Head head{.envelope = awaited.envelope,
                    .channel = question.channel,
                    .tag = awaited.tag,
                    .part = question.part,
                    .type = MessageType::kAnswer};
    const Block ranks = core_.pool.copy(std::as_bytes(std::span(awaited.ranks)));
    core_.actions.send(peer, head, {ranks.bytes(), ranks});
  }
}

void Inquiry::on_answer(const Head& head, ConstByteSpan ranks) {
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
    for (const int rank : late) edges_.push_back({{rank, question_.tag}, channel_.rank, own});
    while (!edges_.empty()) {
      // Asks all ranks at once, because dead ranks would delay a sequential search.
      for (const WaitEdge& edge : edges_)
        if (!answers_.contains(edge.query)) send_question(edge.query);
      start_ = Clock::now();
      poll_until([this] { return channel_.faulty() || take_answers(); });
      unanswered_.clear();
      std::vector<WaitEdge> next;
      for (const WaitEdge& edge : edges_) {
        if (differ(edge.awaited, answers_.at(edge.query))) return difference(edge);
        follow(edge, next);
      }
      edges_ = std::move(next);
    }
    if (unresponsive_.empty()) unresponsive_.insert(late.begin(), late.end());
    return {{unresponsive_.begin(), unresponsive_.end()}, {}};
  }

 private:
  // A rank, and the tag of the calls waiting for the rank.
  using Query = std::pair<int, std::uint32_t>;
  struct WaitEdge {
    Query query;
    int waiter;
    Awaited awaited;  // the waiting rank's answer
  };

  // Treats a rank as silent until the rank answers. A rank silent before is not asked again.
  void send_question(const Query& query) try {
    const auto [rank, tag] = query;
    Awaited& answer = answers_[query];
    if (rank == channel_.rank) answer = inquiry_.delivery_.awaited(channel_, tag);
    const bool sends = rank != channel_.rank && !unresponsive_.contains(rank) && !channel_.faulty();
    if (!sends || !inquiry_.core_.actions.may_send()) return;
    const std::uint32_t number = ++inquiry_.last_question_;
    inquiry_.core_.actions.send(channel_.member(rank), {.channel = channel_.id,
                                                        .tag = tag,
                                                        .part = number,
                                                        .from = channel_.rank,
                                                        .type = MessageType::kQuestion});
    unanswered_[number] = query;
  } catch (const std::exception&) {
    // The rank stays silent.
  }

  // Returns true if no answer is missing, or at the timeout. If several ranks are silent, most of
  // them may only be slow and get more time.
  bool take_answers() {
    constexpr int kMoreTimeouts = 4;
    std::erase_if(unanswered_, [&](const auto& question) {
      auto found = inquiry_.answers_.extract(question.first);
      if (!found) return false;
      Awaited& answer = answers_[question.second] = std::move(found.mapped());
      std::erase_if(answer.ranks, [&](int rank) {
        return rank < 0 || rank >= static_cast<int>(channel_.members.size());
      });
      return true;
    });
    const auto until = start_ + question_.timeout * (unanswered_.size() > 1 ? kMoreTimeouts : 1);
    return unanswered_.empty() || Clock::now() >= until;
  }

  void follow(const WaitEdge& edge, std::vector<WaitEdge>& next) {
    const int rank = edge.query.first;
    const Awaited& answer = answers_.at(edge.query);
    if (answer.ranks.empty()) unresponsive_.insert(rank == channel_.rank ? edge.waiter : rank);
    if (!visited_.insert(edge.query).second) return;
    for (const int other : answer.ranks) next.push_back({{other, answer.tag}, rank, answer});
  }

  FailedRanks difference(const WaitEdge& edge) const {
    const bool own = edge.waiter == channel_.rank;
    const Envelope &awaited = edge.awaited.envelope, &other = answers_.at(edge.query).envelope;
    const int rank = edge.query.first;
    const std::string text = host::difference(awaited, other, channel_.name(rank),
                                              own ? question_.name : "an operation");
    return {{},
            own ? text : text + ", seen from " + channel_.name(edge.waiter),
            {edge.waiter, awaited.signature, rank, other.signature}};
  }

  Inquiry& inquiry_;
  const ChannelState& channel_;
  const Question& question_;
  Clock::time_point start_;
  std::vector<WaitEdge> edges_;
  std::map<Query, Awaited> answers_;
  std::map<std::uint32_t, Query> unanswered_;  // by question number
  std::set<Query> visited_;
  std::set<int> unresponsive_;
};

FailedRanks Inquiry::find(const ChannelState& channel, const Question& question,
                          std::span<const int> late, const PollUntil& poll_until) {
  return Search(*this, channel, question).find(late, poll_until);
}

}  // namespace tersor::host
