// Implements kernels/host/checksum.h, once per instruction set.

#include "kernels/host/checksum.h"

#include "kernels/host/targets.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/checksum.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/host/checksum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

std::uint64_t checksum_on(const void* words, std::size_t count, std::uint64_t first_word) {
  WordSum sum(first_word);
  sum.add(static_cast<const std::byte*>(words), count);
  return sum.value();
}

std::uint64_t checksum_with_first_row_on(const void* first_row, const void* words,
                                         std::size_t count) {
  WordSum sum(0);
  sum.add(static_cast<const std::byte*>(first_row), kChecksumColumns);
  sum.add(static_cast<const std::byte*>(words), count);
  return sum.value();
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

constexpr ChecksumNumbers kChecksumNumbers = make_checksum_numbers();
static_assert(std::ranges::min(kChecksumNumbers.weight) > -(1 << 30),
              "else four products overflow");

TERSOR_DISPATCHED(std::uint64_t, checksum,
                  (const void* words, std::size_t count, std::uint64_t first_word),
                  (words, count, first_word))
TERSOR_DISPATCHED(std::uint64_t, checksum_with_first_row,
                  (const void* first_row, const void* words, std::size_t count),
                  (first_row, words, count))

}  // namespace tersor::kernels
#endif
