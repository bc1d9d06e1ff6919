// What one connection still has to send, in order. Payloads stay where they are.
#pragma once

#include <tersor/network.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace tersor::tcp {

using Job = Wire::Job;

/// A message, or a part of one that travels without its head.
struct Parcel {
  MessageHead head = {};
  bool headed = true;
  ConstByteSpan payload = {};
  Block block = {};               ///< that holds the payload, or none
  std::shared_ptr<Job> job = {};  ///< told once all of it has left, or null
  std::size_t sent = 0;           ///< bytes that have left, of the head first

  std::size_t bytes() const { return (headed ? sizeof(MessageHead) : 0) + payload.size(); }
  /// What has not left: of the head, of the payload.
  std::array<ConstByteSpan, 2> rest() const;
};

/// What one call of the system sends or receives.
inline constexpr std::size_t kMostPieces = 16;
using Pieces = std::array<ConstByteSpan, kMostPieces>;

class Outbox {
 public:
  bool empty() const { return parcels_.empty(); }
  /// Whether there is nothing but last words.
  bool only_goodbyes() const;
  void add(Parcel parcel) { parcels_.push_back(std::move(parcel)); }
  /// Before all that has not begun to leave.
  void add_first(Parcel parcel);
  /// What is nobody's, of the last parcel, is copied into a block: its owner may go.
  void keep_last(const std::function<Block(std::size_t bytes)>& make_block);
  /// What to send next; the pieces that are left over are empty.
  Pieces next() const;
  /// So many bytes of these have left. Jobs of which nothing is left go to `done`.
  void left(std::size_t bytes, std::vector<std::shared_ptr<Job>>& done);
  /// Nothing of it will leave any more.
  void drop(std::vector<std::shared_ptr<Job>>& done);

 private:
  std::deque<Parcel> parcels_;
};

/// Counts one part of a job less; into `done` where it was the last one.
void finish_part(std::shared_ptr<Job> job, std::vector<std::shared_ptr<Job>>& done);

}  // namespace tersor::tcp
