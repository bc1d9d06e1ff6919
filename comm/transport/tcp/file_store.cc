// Implements file_store.h.
#include "comm/transport/tcp/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <tersor/error.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

namespace tersor::tcp {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLookEvery{2};
constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;

/// An open file. Links at its place are not followed.
class File {
 public:
  File(const fs::path& path, int flags)
      : number_(open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly)) {}
  ~File() {
    if (is_open()) ::close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return number_ >= 0; }
  bool write(std::string_view text) const {
    return ::write(number_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }
  /// Whether it is this user's, and nobody else may write it.
  bool is_own() const {
    struct stat status {};
    return fstat(number_, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
           (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  }
  std::string text() const {
    std::string all;
    std::array<char, 4096> some;
    for (ssize_t bytes; (bytes = read(number_, some.data(), some.size())) > 0;)
      all.append(some.data(), static_cast<std::size_t>(bytes));
    return all;
  }

 private:
  const int number_;
};

}  // namespace

// Under another name first, so that nobody reads half of it; never into a file that is there.
void FileStore::set(const std::string& key, const std::string& value) {
  const fs::path part = file(key + ".part");
  unlink(part.c_str());
  const File made(part, O_WRONLY | O_CREAT | O_EXCL);
  std::error_code failed;
  const bool written = made.is_open() && made.write(value);
  if (written) fs::rename(part, file(key), failed);
  if (written && !failed) return left_.push_back(file(key));
  if (made.is_open()) unlink(part.c_str());
  throw InvalidArgument("cannot write " + file(key).string());
}

std::string FileStore::get(const std::string& key, Clock::time_point until) {
  const fs::path wanted = file(key);
  while (true) {
    const File found(wanted, O_RDONLY | O_NONBLOCK);
    const int error = errno;
    if (found.is_open() && !found.is_own())
      throw InvalidArgument(wanted.string() +
                            " is not believed: it is another user's, or others may write it");
    if (found.is_open()) return found.text();
    if (error != ENOENT)
      throw InvalidArgument("cannot read " + wanted.string() + ": " + std::strerror(error));
    if (Clock::now() >= until) throw TransportError("there is no " + wanted.string());
    std::this_thread::sleep_for(kLookEvery);
  }
}

void FileStore::take_back() {
  std::error_code ignored;
  for (const fs::path& each : left_) fs::remove(each, ignored);
  left_.clear();
}

}  // namespace tersor::tcp
