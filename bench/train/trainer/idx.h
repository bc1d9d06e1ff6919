// Reads IDX files, the format of MNIST and successors: a big-endian header, then bytes. Files may
// be compressed with gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace trainer {

/// A missing or damaged data set. The message names the file and explains how to get a correct
/// file.
class DatasetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The unsigned bytes of an IDX file. The last dimension varies fastest.
struct IdxArray {
  std::vector<std::size_t> dimensions;
  std::vector<std::uint8_t> values;
};

/// Reads unsigned bytes in `dimensions` dimensions from `path`. Throws DatasetError if the file
/// cannot be read, has another type, or has another length than the header states. A damaged gzip
/// stream fails by the stream's checksum.
IdxArray read_idx(const std::filesystem::path& path, std::size_t dimensions);

}  // namespace trainer
