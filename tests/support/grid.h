// The size of the tested grid of counts, types and damaged bits.
#pragma once

namespace tersor::test {

/// True if TERSOR_TEST_GRID=small requests a subset: each count and each type, but not all
/// combinations. The script scripts/test sets this value by default. The parts release and ptx-grid
/// test the whole grid.
bool grid_is_small();

}  // namespace tersor::test
