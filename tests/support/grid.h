// How much of a grid of counts, types and damaged bits a test goes through.
#pragma once

namespace tersor::test {

/// Whether TERSOR_TEST_GRID=small asks for a part: each count and each type, but not all of them
/// together. So it is where scripts/test runs without a name; its parts release and ptx-grid go
/// through the whole.
bool grid_is_small();

}  // namespace tersor::test
