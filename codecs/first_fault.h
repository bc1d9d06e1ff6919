// The fault of a call that several threads may find.
#pragma once

#include "codecs/frame.h"

#include <cstddef>
#include <mutex>
#include <tuple>

namespace tersor::encoding {

/// The first fault of several frames in frame order, regardless of the detecting thread.
class FirstFault {
 public:
  void add(std::size_t frame, std::size_t segment, const char* text) {
    const std::scoped_lock lock(mutex_);
    if (text_ != nullptr && std::tie(frame_, segment_) <= std::tie(frame, segment)) return;
    std::tie(frame_, segment_, text_) = std::tie(frame, segment, text);
  }

  /// Throws WireError if a fault was added.
  void check(std::size_t frames) const {
    if (text_ != nullptr) throw_invalid_indices(frame_, frames, segment_, text_);
  }

 private:
  std::mutex mutex_;
  std::size_t frame_ = 0;
  std::size_t segment_ = 0;
  const char* text_ = nullptr;
};

}  // namespace tersor::encoding
