// Reads IDX files (the format of MNIST and its successors: big-endian header, then bytes), plain or
// gzip'd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace trainer {

/// A data set that is missing or damaged. The message names the file and says how to get a good
/// one.
class DatasetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The unsigned bytes of one IDX file; the last dimension runs fastest.
struct IdxArray {
  std::vector<std::size_t> dimensions;
  std::vector<std::uint8_t> values;
};

/// Reads `path`, which must hold unsigned bytes in `dimensions` dimensions.
/// Throws DatasetError where it cannot be read, is of another type, or is shorter or longer than
/// its header says; a damaged gzip stream fails by its own checksum.
IdxArray read_idx(const std::filesystem::path& path, std::size_t dimensions);

}  // namespace trainer
