// Asks the awaited ranks for whom they wait, to blame the late rank rather than the waiting rank.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string_view>

#include "comm/transport/host/delivery.h"

namespace tersor::host {

/// A question to other ranks: for whom do you wait in the call with this name and tag?
struct Question {
  std::string_view name;
  std::uint32_t tag = 0;
  std::chrono::milliseconds timeout{0};  ///< time to wait for an answer
};

/// The ranks blocking the others: ranks without an answer and ranks waiting for no rank.
/// Alternatively, the difference between two calls.
struct FailedRanks {
  std::vector<int> ranks = {};
  std::string difference = {};
  Mismatch mismatch = {};  ///< the calls that differ
};

/// The questions of other ranks, and the answers to this rank's questions.
class Inquiry {
 public:
  Inquiry(const Core& core, const Delivery& delivery) : core_(core), delivery_(delivery) {}

  /// True if questions wait for an answer. Thread-safe.
  bool has_questions() const { return has_questions_.load(std::memory_order_relaxed); }
  /// A rank with a waiting thread answers at once, on any thread. Other ranks stay silent.
  void on_question(const Head& head, int peer, bool is_waiting);
  void answer_questions();
  void on_answer(const Head& head, ConstByteSpan ranks);

  /// Finds the ranks to blame. Asks the late ranks, then follows the answers along the awaited
  /// ranks. Ends at the ranks without an answer, at the ranks waiting for no rank, or at a
  /// differing call. Returns the late ranks if all ranks wait for each other. `poll_until(done)`
  /// makes progress until `done()` returns true.
  using PollUntil = std::function<void(const std::function<bool()>& done)>;
  FailedRanks find(const ChannelState& channel, const Question& question, std::span<const int> late,
                   const PollUntil& poll_until);

 private:
  class Search;

  const Core core_;
  const Delivery& delivery_;
  std::uint32_t last_question_ = 0;           // number of questions sent by this rank
  std::map<std::uint32_t, Awaited> answers_;  // received answers, by question number
  // Received questions, with the world rank that asked.
  std::vector<std::pair<Head, int>> questions_;
  std::atomic<bool> has_questions_{false};  // True if questions came while no thread was waiting
};

}  // namespace tersor::host
