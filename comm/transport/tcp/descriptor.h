// A descriptor of the system's, closed with its owner. All of them are opened so that no program
// that is started here gets them, from their first moment on.
#pragma once

#include <unistd.h>

#include <utility>

namespace tersor::tcp {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  int number() const { return number_; }
  bool open() const { return number_ >= 0; }
  void close() {
    if (open()) ::close(std::exchange(number_, -1));
  }

 private:
  int number_;
};

}  // namespace tersor::tcp
