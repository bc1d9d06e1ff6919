// Counts allocations, for tests of allocation-free code.
#pragma once

#include <cstddef>

namespace tersor::test {

/// Calls of operator new in all threads since program start; 0 with a sanitizer.
std::size_t allocations();

}  // namespace tersor::test
