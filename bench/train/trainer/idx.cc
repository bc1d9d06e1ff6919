// Reads IDX files with zlib. The gz functions of zlib also read uncompressed files.
#include "bench/train/trainer/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <string>

namespace trainer {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;              // the type code in an IDX header
constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // limit for sizes in damaged headers

[[noreturn]] void fail_file(const std::filesystem::path& path, const std::string& cause) {
  throw DatasetError(path.string() + ": " + cause +
                     ". Install the Debian package dataset-fashion-mnist, or name a folder that "
                     "holds the four IDX files with --data DIR");
}

class GzipFile {
 public:
  explicit GzipFile(const std::filesystem::path& path)
      : path_(path), file_(gzopen(path.c_str(), "rb"), &gzclose) {
    if (file_ == nullptr) fail_file(path_, std::strerror(errno));
  }

  /// Fills `bytes` or fails.
  void read(std::span<std::uint8_t> bytes) {
    if (read_some(bytes) < bytes.size()) fail_file(path_, "ends too early");
  }

  /// Fails unless the file ends here. zlib compares the checksum at the end.
  void expect_end() {
    std::array<std::uint8_t, 1> beyond;
    if (read_some(beyond) != 0) fail_file(path_, "holds more bytes than its header says");
  }

 private:
  std::size_t read_some(std::span<std::uint8_t> bytes) {
    const std::size_t count = gzfread(bytes.data(), 1, bytes.size(), file_.get());
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) fail_file(path_, std::strerror(errno));
    if (code != Z_OK && code != Z_STREAM_END)
      fail_file(path_, std::string("is damaged: ") + message);
    return count;
  }

  const std::filesystem::path& path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

std::size_t read_big_endian(GzipFile& file) {
  std::array<std::uint8_t, 4> bytes;
  file.read(bytes);
  return std::size_t{bytes[0]} << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

}  // namespace

IdxArray read_idx(const std::filesystem::path& path, std::size_t dimensions) {
  GzipFile file(path);
  if (read_big_endian(file) != (kUnsignedByte << 8 | dimensions))
    fail_file(path, "is not an IDX file of unsigned bytes in " + std::to_string(dimensions) +
                        " dimensions");
  IdxArray array;
  std::size_t count = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    array.dimensions.push_back(read_big_endian(file));
    count *= std::min(array.dimensions.back(), kMostBytes);  // both factors below 2^31: no overflow
    if (count > kMostBytes) fail_file(path, "asks for more than a gigabyte of values");
  }
  array.values.resize(count);
  file.read(array.values);
  file.expect_end();
  return array;
}

}  // namespace trainer
