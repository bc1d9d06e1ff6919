#include "comm/transport/host/steps.h"

#include <algorithm>
#include <bit>

namespace tersor::host {
namespace {

/// The role of a rank in the reduction to a power of two of partners.
struct Fold {
  int partners;
  bool is_extra;  ///< True if the rank gives its values to another rank
  int other;      ///< the receiving rank, the giving rank, or kNoRank

  Fold(int rank, int ranks)
      : partners(static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)))),
        is_extra(rank >= partners),
        other(is_extra                  ? rank - partners
              : rank + partners < ranks ? rank + partners
                                        : HostStep::kNoRank) {}
};

HostStep exchange(int peer, ItemRange sent, ItemRange received) {
  return {.to = peer, .from = peer, .sent = sent, .received = received, .combines = true};
}

/// Adds steps for the ranks beyond the partners to the partners' steps.
template <typename AddPartnerSteps>
HostSteps folded(int rank, int ranks, ItemRange all, AddPartnerSteps&& add_partner_steps) {
  const Fold fold(rank, ranks);
  const HostStep gives{.to = fold.other, .sent = all}, takes{.from = fold.other, .received = all};
  if (fold.is_extra) return {gives, takes};
  HostSteps steps;
  if (fold.other != HostStep::kNoRank) steps.push_back(takes);
  if (!steps.empty()) steps.back().combines = true;
  add_partner_steps(fold.partners, steps);
  if (fold.other != HostStep::kNoRank) steps.push_back(gives);
  return steps;
}

}  // namespace

HostSteps recursive_doubling(int rank, int ranks, std::size_t count) {
  const ItemRange all{0, count};
  return folded(rank, ranks, all, [&](int partners, HostSteps& steps) {
    for (int distance = 1; distance < partners; distance *= 2)
      steps.push_back(exchange(rank ^ distance, all, all));
  });
}

HostSteps halving_doubling(int rank, int ranks, std::size_t count) {
  const ItemRange all{0, count};
  return folded(rank, ranks, all, [&](int partners, HostSteps& steps) {
    HostSteps back;
    ItemRange remaining = all;
    for (int distance = 1; distance < partners; distance *= 2) {
      const ItemRange low{remaining.first, remaining.count / 2};
      const ItemRange high{remaining.first + low.count, remaining.count - low.count};
      const bool takes_high = (rank & distance) != 0;
      remaining = takes_high ? high : low;
      steps.push_back(exchange(rank ^ distance, takes_high ? low : high, remaining));
      back.push_back(exchange(rank ^ distance, remaining, takes_high ? low : high));
      back.back().combines = false;
    }
    steps.insert(steps.end(), back.rbegin(), back.rend());
  });
}

HostSteps gather_in_rounds(int rank, int ranks) {
  HostSteps steps;
  for (int distance = 1; distance < ranks; distance *= 2) {
    const auto records = static_cast<std::size_t>(std::min(distance, ranks - distance));
    steps.push_back({.to = (rank - distance + ranks) % ranks,
                     .from = (rank + distance) % ranks,
                     .sent = {0, records},
                     .received = {static_cast<std::size_t>(distance), records}});
  }
  return steps;
}

SumAlgorithm sum_algorithm(int ranks, bool one_host, std::size_t bytes) {
  using Tuning = SumTuning;
  if (!std::has_single_bit(static_cast<unsigned>(ranks))) {
    const std::size_t direct = ranks < 8 ? Tuning::kMaxDirectFewRanks : Tuning::kMaxDirectBytes;
    return bytes <= direct ? SumAlgorithm::kDirect : SumAlgorithm::kRing;
  }
  if (bytes > Tuning::kMaxHalvingBytes) return SumAlgorithm::kRing;
  const std::size_t doubled = one_host ? Tuning::kMaxDoublingOnHost : Tuning::kMaxDoublingBytes;
  return ranks == 2 || bytes <= doubled ? SumAlgorithm::kDoubling : SumAlgorithm::kHalving;
}

HostSteps steps_of(SumAlgorithm algorithm, int rank, int ranks, std::size_t count) {
  return algorithm == SumAlgorithm::kDoubling ? recursive_doubling(rank, ranks, count)
                                              : halving_doubling(rank, ranks, count);
}

}  // namespace tersor::host
