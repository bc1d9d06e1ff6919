// The send queue of a connection. Payloads are not copied.
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
using MakeBlock = std::function<Block(std::size_t bytes)>;

/// A message, or a part of a message without a header.
struct SendItem {
  MessageHead head = {};
  bool has_header = true;
  ConstByteSpan payload = {};
  Block block = {};               ///< contains the payload, or empty
  std::shared_ptr<Job> job = {};  ///< notified after the whole message has left, or null
  std::size_t sent = 0;           ///< number of sent bytes, header first

  std::size_t bytes() const { return (has_header ? sizeof(MessageHead) : 0) + payload.size(); }
  /// The unsent bytes of the header and of the payload.
  std::array<ConstByteSpan, 2> remaining() const;
  /// Copies the unsent bytes of a payload outside of a block into a block, because the caller may
  /// free the payload.
  void copy_unsent(const MakeBlock& make_block);
};

/// The spans of a single system call.
inline constexpr std::size_t kMaxWriteBuffers = 16;
using WriteBuffers = std::array<ConstByteSpan, kMaxWriteBuffers>;

class SendQueue {
 public:
  bool empty() const { return items_.empty(); }
  /// True if only goodbyes are queued.
  bool has_only_goodbyes() const;
  void add(SendItem item) { items_.push_back(std::move(item)); }
  /// Queues an item before all items not yet begun.
  void add_first(SendItem item);
  /// Keeps the last item unless the payload has an owner.
  void copy_last(const MakeBlock& make_block);
  /// Keeps all items of a job.
  void copy_unsent(const Job* job, const MakeBlock& make_block);
  /// The next bytes to send; unused spans are empty.
  WriteBuffers next() const;
  /// Records sent bytes. Adds completed jobs to `done`.
  void on_sent(std::size_t bytes, std::vector<std::shared_ptr<Job>>& done);
  /// Discards all items.
  void drop(std::vector<std::shared_ptr<Job>>& done);

 private:
  std::deque<SendItem> items_;
};

/// Decrements the open parts of a job. Adds the job to `done` after the last part.
void finish_part(std::shared_ptr<Job> job, std::vector<std::shared_ptr<Job>>& done);

}  // namespace tersor::tcp
