// Counts allocations, for tests of allocation-free code.
#pragma once

#include <cstddef>

namespace tersor::test {

/// Calls of operator new in all threads since program start; 0 with a sanitizer.
std::size_t allocations();
/// The calls for at least 8 KiB, which is more than handles and lists of handles take.
std::size_t large_allocations();

}  // namespace tersor::test
