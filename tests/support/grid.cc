// See grid.h.

#include "tests/support/grid.h"

#include <cstdlib>
#include <string_view>

namespace tersor::test {

bool grid_is_small() {
  const char* asked = std::getenv("TERSOR_TEST_GRID");
  return asked != nullptr && std::string_view(asked) == "small";
}

}  // namespace tersor::test
