#include "comm/transport/tcp/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <tersor/error.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "comm/transport/tcp/descriptor.h"

namespace tersor::tcp {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kPollInterval{2};
constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;

/// An open file. Opening never follows symbolic links.
class File : public Descriptor {
 public:
  File(const fs::path& path, int flags)
      : Descriptor(::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, kOwnerOnly)) {}

  bool write(std::string_view text) const {
    return ::write(fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }
  /// True if the file is this user's, and nobody else may read or write the file.
  bool is_private() const {
    struct stat status {};
    return fstat(fd(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
           (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  }
  std::string text() const {
    std::string all;
    std::array<char, 4096> some;
    for (ssize_t bytes; (bytes = read(fd(), some.data(), some.size())) > 0;)
      all.append(some.data(), static_cast<std::size_t>(bytes));
    return all;
  }
};

[[noreturn]] void fail_write(const fs::path& file, std::string_view reason) {
  throw InvalidArgumentError("cannot write " + file.string() + ": " + std::string(reason));
}

/// A new file with a temporary name. The file must not exist before. Throws InvalidArgumentError.
class TempFile {
 public:
  explicit TempFile(const fs::path& of) : path_(of.string() + ".part") {
    unlink(path_.c_str());
    file_.emplace(path_, O_WRONLY | O_CREAT | O_EXCL);
    if (!file_->is_open()) fail_write(of, std::strerror(errno));
  }
  ~TempFile() { unlink(path_.c_str()); }

  const fs::path& path() const { return path_; }
  const File& file() const { return *file_; }

 private:
  const fs::path path_;
  std::optional<File> file_;
};

}  // namespace

// Writes a new temporary file, then renames the file. No rank reads a partial value, and existing
// files are never written.
void FileStore::set(const std::string& key, const std::string& value) {
  const TempFile part(file(key));
  if (!part.file().write(value)) fail_write(file(key), "the disk may be full");
  std::error_code failed;
  fs::rename(part.path(), file(key), failed);
  if (failed) fail_write(file(key), failed.message());
  stored_.push_back(file(key));
}

void FileStore::check_writable(const std::string& key) const { const TempFile part(file(key)); }

std::string FileStore::get(const std::string& key, Clock::time_point until) {
  const fs::path path = file(key);
  while (true) {
    const File found(path, O_RDONLY | O_NONBLOCK);
    const int error = errno;
    if (found.is_open() && !found.is_private())
      throw InvalidArgumentError(
          "cannot trust " + path.string() +
          ": the file must belong to you, and other users must not have access");
    if (found.is_open()) return found.text();
    if (error != ENOENT)
      throw InvalidArgumentError("cannot read " + path.string() + ": " + std::strerror(error));
    if (Clock::now() >= until) throw TransportError(path.string() + " does not exist");
    std::this_thread::sleep_for(kPollInterval);
  }
}

void FileStore::remove_stored() {
  std::error_code ignored;
  for (const fs::path& each : stored_) fs::remove(each, ignored);
  stored_.clear();
}

}  // namespace tersor::tcp
