// Fat binaries of nvcc, with PTX and machine code for several devices.
#pragma once

#include <string>

namespace ptx {

/// Returns the PTX for the newest device up to compute capability `capability` (90 is 9.0). Returns
/// an empty string if no PTX is readable, and prints the reason to stderr.
std::string best_ptx(const char* fat_binary, int capability);

}  // namespace ptx
