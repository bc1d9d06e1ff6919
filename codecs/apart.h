// The memory of a call. Written memory must not overlap other memory of the call.
#pragma once

#include <tersor/span.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace tersor::encoding {

/// True if two spans have a byte in common.
inline bool overlap(const ConstValueSpan& one, const ConstValueSpan& other) {
  return !one.empty() && !other.empty() && one.pointer() < other.pointer() + other.bytes() &&
         other.pointer() < one.pointer() + one.bytes();
}

/// Collects the spans of a call. A thread's later collections of the same or a smaller size
/// allocate no memory.
class CallMemory {
 public:
  CallMemory() {
    ranges_.clear();
    ranges_.reserve(256);
  }
  void read(const char* name, const std::byte* first, std::size_t bytes) {
    add({first, bytes, name, false});
  }
  void write(const char* name, const std::byte* first, std::size_t bytes) {
    add({first, bytes, name, true});
  }
  /// `in` and `out` may be the same span.
  void update(const char* name, const ConstValueSpan& in, const ValueSpan& out) {
    if (in.pointer() != out.pointer() || in.bytes() != out.bytes())
      read(name, in.pointer(), in.bytes());
    write(name, out.pointer(), out.bytes());
  }

  /// Returns an error text if a written span overlaps another span; else an empty string.
  std::string overlap() const {
    std::ranges::sort(ranges_, std::less<>(), &Range::first);
    const Range *read = nullptr, *written = nullptr;
    for (const Range& range : ranges_) {
      // A range overlaps an earlier range if and only if the range begins before the largest end.
      for (const Range* before : {written, range.is_written ? read : nullptr})
        if (before != nullptr && range.first < before->end())
          return std::string(before->name) + " overlaps " + range.name +
                 ": give each memory of its own";
      const Range*& last = range.is_written ? written : read;
      if (last == nullptr || last->end() < range.end()) last = &range;
    }
    return {};
  }

 private:
  struct Range {
    const std::byte* first;
    std::size_t bytes;
    const char* name;
    bool is_written;
    const std::byte* end() const { return first + bytes; }
  };
  void add(const Range& range) {
    if (range.bytes != 0) ranges_.push_back(range);
  }

  static std::vector<Range>& of_thread() {
    thread_local std::vector<Range> ranges;
    return ranges;
  }

  std::vector<Range>& ranges_ = of_thread();
};

}  // namespace tersor::encoding
