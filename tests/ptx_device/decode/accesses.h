// ld and st: shared by their files.
#pragma once

#include "tests/ptx_device/decode/types.h"
#include "tests/ptx_device/machine/access.h"

#include <string>

namespace ptx {

/// The type in memory, the registers, and the number of values.
struct AccessType {
  std::string type;
  unsigned register_bytes;
  unsigned count;
  Space space;
  bool is_fixed;  // True for a parameter at the same address for all threads
};

// Return null if not supported.
WarpFunction load_of(const AccessType& access);
WarpFunction store_of(const AccessType& access);

/// Calls choose.template operator()<kCount>().
template <class F>
WarpFunction by_count(unsigned count, F choose) {
  switch (count) {
    case 1:
      return choose.template operator()<1>();
    case 2:
      return choose.template operator()<2>();
    case 4:
      return choose.template operator()<4>();
    case 8:
      return choose.template operator()<8>();
    default:
      return nullptr;
  }
}

}  // namespace ptx
