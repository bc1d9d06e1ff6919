// A system descriptor, closed by the owner. All descriptors are opened with close-on-exec from the
// beginning. Started programs therefore never inherit descriptors.
#pragma once

#include <unistd.h>

#include <utility>

namespace tersor::tcp {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close() {
    if (is_open()) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

}  // namespace tersor::tcp
