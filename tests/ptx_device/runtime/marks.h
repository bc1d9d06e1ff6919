// Which bytes of the device's memory were ever written: for stand-ins of other libraries, which
// hand that on with what they move.
#pragma once

#include <cstddef>
#include <vector>

namespace ptx {

/// A byte for each, 0 where nobody wrote it; empty where that is not known.
std::vector<char> marks_at(const void* pointer, std::size_t bytes);
void set_marks(const void* pointer, const std::vector<char>& marks);

}  // namespace ptx
