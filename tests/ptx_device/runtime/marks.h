// Marks of written device memory. Replacements of other libraries transfer the marks together with
// the bytes.
#pragma once

#include <cstddef>
#include <vector>

namespace ptx {

/// A mark per byte, 0 if never written. Empty if unknown.
std::vector<char> marks_at(const void* pointer, std::size_t bytes);
void set_marks(const void* pointer, const std::vector<char>& marks);

}  // namespace ptx
