// What nvcc puts into a program: a fat binary, which holds PTX and machine code for several
// devices.
#pragma once

#include <string>

namespace ptx {

/// The PTX for the newest device up to compute capability `capability` (90 is 9.0). Empty: there is
/// none that can be read; stderr says why.
std::string best_ptx(const char* fat_binary, int capability);

}  // namespace ptx
