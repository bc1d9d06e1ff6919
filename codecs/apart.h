// The memory of one call: what the call writes overlaps no other memory of the call.
#pragma once

#include <tersor/codec.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tersor::encoding {

/// Whether two spans have a byte in common.
bool overlap(const ConstValueSpan& one, const ConstValueSpan& other);

/// Collects the spans of a call. Allocates nothing once a thread has collected as many before.
class CallMemory {
 public:
  CallMemory();
  void read(const char* name, const std::byte* first, std::size_t bytes) {
    add({first, bytes, name, false});
  }
  void write(const char* name, const std::byte* first, std::size_t bytes) {
    add({first, bytes, name, true});
  }
  /// `in` and `out` may be one span.
  void update(const char* name, const ConstValueSpan& in, const ValueSpan& out);
  /// A sentence if a written span overlaps another span; else empty.
  std::string overlap() const;

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
  static std::vector<Range>& scratch();

  std::vector<Range>& ranges_;
};

/// Memory that the call writes overlaps no other memory of the call, but a state's own `in`.
void check_apart(const Codec& codec, const EncodeCall& call, ConstByteSpan frame);
void check_apart(const Codec& codec, const DecodeCall& call);
void check_apart(const Codec& codec, const ReduceCall& call, ConstByteSpan frame);

}  // namespace tersor::encoding
