// See marks.h.
#include "tests/ptx_device/runtime/marks.h"

#include "tests/ptx_device/machine/memory.h"

#include <algorithm>

namespace ptx {

std::vector<char> marks_at(const void* pointer, std::size_t bytes) {
  const char* marks = Memory::get().marks_of(pointer, bytes);
  return marks == nullptr ? std::vector<char>{} : std::vector<char>(marks, marks + bytes);
}

void set_marks(const void* pointer, const std::vector<char>& marks) {
  if (char* place = Memory::get().marks_of(pointer, marks.size()))
    std::copy(marks.begin(), marks.end(), place);
}

}  // namespace ptx
