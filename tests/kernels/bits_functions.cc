// Implements bits_functions.h, once per instruction set.

#include "tests/kernels/bits_functions.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/bits_functions.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/bits/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

std::size_t pack_quotients_on(const std::uint8_t* numbers, std::size_t count, unsigned shift,
                              std::byte* plane) {
  PlaneWriter writer(plane);
  put_quotients(writer, numbers, count, shift);
  return writer.finish();
}

std::size_t unpack_quotients_on(const std::byte* plane, std::size_t words, std::size_t count,
                                std::uint8_t* quotients) {
  return extract_quotients(plane, words, count, quotients);
}

std::size_t pack_plane_on(const std::uint8_t* numbers, std::size_t count, unsigned bit,
                          std::uint8_t* plane) {
  return put_plane(numbers, count, bit, plane);
}

void unpack_plane_on(const std::uint8_t* plane, std::size_t count, unsigned bit,
                     std::uint8_t* numbers) {
  add_plane(plane, count, bit, numbers);
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

TERSOR_DISPATCHED(std::size_t, pack_quotients,
                  (const std::uint8_t* numbers, std::size_t count, unsigned shift,
                   std::byte* plane),
                  (numbers, count, shift, plane))
TERSOR_DISPATCHED(std::size_t, unpack_quotients,
                  (const std::byte* plane, std::size_t words, std::size_t count,
                   std::uint8_t* quotients),
                  (plane, words, count, quotients))
TERSOR_DISPATCHED(std::size_t, pack_plane,
                  (const std::uint8_t* numbers, std::size_t count, unsigned bit,
                   std::uint8_t* plane),
                  (numbers, count, bit, plane))
TERSOR_DISPATCHED(void, unpack_plane,
                  (const std::uint8_t* plane, std::size_t count, unsigned bit,
                   std::uint8_t* numbers),
                  (plane, count, bit, numbers))

}  // namespace tersor::kernels
#endif
