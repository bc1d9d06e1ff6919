// Reads arrays of floating-point numbers from NumPy's .npy files.
#pragma once

#include <filesystem>
#include <vector>

namespace tersor::bench {

/// All values of an array of any shape, in the order of the file, as f32 (f2, f4 or f8 there,
/// little-endian). Format: NumPy Enhancement Proposal 1, versions 1 to 3.
/// Throws InvalidArgument where the file cannot be read, is no such array, is shorter or longer
/// than its header says, or holds a value that is not finite.
std::vector<float> read_npy(const std::filesystem::path& path);

}  // namespace tersor::bench
