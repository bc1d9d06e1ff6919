// Allocated memory of this process.
#pragma once

#include <malloc.h>

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// GCC does not install the header sanitizer/allocator_interface.h.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace tersor::testing {

/// Returns the allocated bytes. Sanitizers replace malloc: mallinfo2() would start a second malloc,
/// and the end of a thread would fail.
inline std::size_t heap_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return __sanitizer_get_current_allocated_bytes();
#else
  const auto use = mallinfo2();
  return use.uordblks + use.hblkhd;
#endif
}

}  // namespace tersor::testing
