// How often this program allocated: for tests of what must not.
#pragma once

#include <cstddef>

namespace tersor::test {

/// Calls of operator new in all threads since the program began; 0 under a sanitizer.
std::size_t allocations();

}  // namespace tersor::test
