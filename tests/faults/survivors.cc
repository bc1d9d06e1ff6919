// Implements survivors.h.
#include "tests/faults/survivors.h"

#include <tersor/error.h>

#include <map>
#include <span>

namespace tersor::faults {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kWordWithin = 20s;
constexpr std::size_t kMostValues = 3'000;

bool is_gone(FaultKind kind) { return kind == FaultKind::kLeave || kind == FaultKind::kKill; }
bool stands_still(FaultKind kind) {
  return kind == FaultKind::kStop || kind == FaultKind::kSuspend;
}

/// Starts message exchanges with every peer except stalled peers.
std::map<int, Handle> begin_words(const Scenario& scenario, Transport& isolated) {
  std::map<int, Handle> words;
  for (int peer = 0; peer < isolated.ranks(); ++peer) {
    if (peer == isolated.rank()) continue;
    if (peer == scenario.fault.rank && stands_still(scenario.fault.kind)) continue;
    const SendTo to{peer, {}};
    const ReceiveFrom from{peer, 0};
    words[peer] = isolated.exchange({.name = "word", .timeout = kWordWithin}, {&to, 1}, {&from, 1});
  }
  return words;
}

std::string error_of(Handle& word) {
  try {
    word.wait_synchronize();
  } catch (const PeerLostError& lost) {
    return lost.what();
  }
  return {};
}

bool adds_up(Transport& transport) {
  const auto ranks = static_cast<std::size_t>(transport.ranks());
  const std::size_t count = kMostValues / ranks;
  std::vector<float> values(count * ranks, 1.0f);
  std::vector<ValueSpan> parts;
  for (std::size_t part = 0; part < ranks; ++part)
    parts.push_back(ValueSpan(values).subspan(part * count, count));
  transport.sum({.name = "sum", .timeout = kWordWithin}, parts).wait_synchronize();
  return values == std::vector<float>(values.size(), static_cast<float>(ranks));
}

}  // namespace

// Every rank has the channel after this exchange, before any poisoning.
std::unique_ptr<Transport> isolated_channel_of(Transport& transport) try {
  std::unique_ptr<Transport> isolated = transport.isolated_channel();
  for (auto& [peer, word] : begin_words({}, *isolated)) word.wait_synchronize();
  return isolated;
} catch (const InvalidArgumentError&) {
  return nullptr;
}

std::vector<std::string> go_on(const Scenario& scenario, Transport& isolated) try {
  std::vector<std::string> complaints;
  std::vector<int> left;
  auto words = begin_words(scenario, isolated);
  for (int rank = 0; rank < isolated.ranks(); ++rank) {
    const auto word = words.find(rank);
    const std::string error = word == words.end() ? "" : error_of(word->second);
    const bool gone = rank == scenario.fault.rank && is_gone(scenario.fault.kind);
    if (error.empty() == gone)
      complaints.push_back("of rank " + std::to_string(rank) + " it heard on the lifeline: \"" +
                           error + "\"");
    if (!gone && (word != words.end() || rank == isolated.rank())) left.push_back(rank);
  }
  if (!adds_up(*isolated.split(left)))
    complaints.push_back("got a wrong sum on the lifeline's split");
  return complaints;
} catch (const Error& error) {
  return {"could not go on: " + std::string(error.what())};
}

}  // namespace tersor::faults
