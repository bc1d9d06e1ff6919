// Names declared in the scopes of a function: registers, labels and variables. Labels and variables
// of different scopes may have equal names.
#pragma once

#include "tests/ptx_device/ptx/module.h"

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace ptx {

class Scopes {
 public:
  explicit Scopes(std::vector<Register>& registers) : registers_(registers) {}

  void open() { scopes_.push_back({count_++, {}, {}, {}}); }
  void close() { scopes_.pop_back(); }
  bool closed() const { return scopes_.empty(); }

  void add_register(const std::string& name, std::uint8_t bytes) {
    scopes_.back().names[name] = bytes;
  }
  /// %r<8>: %r0 to %r7.
  void add_registers(const std::string& name, unsigned count, std::uint8_t bytes) {
    scopes_.back().ranges[name] = {count, bytes};
  }
  /// The number of the register, or -1 if no register has this name.
  int register_of(const std::string& name);

  /// The unique name of a label or variable of the innermost scope.
  std::string unique(const std::string& name) const;

 private:
  struct Range {
    unsigned count;
    std::uint8_t bytes;
  };
  struct Scope {
    unsigned id;
    std::unordered_map<std::string, Range> ranges;
    std::unordered_map<std::string, std::uint8_t> names;
    std::unordered_map<std::string, int> known;
  };
  int find(Scope& scope, const std::string& name);
  int add(Scope& scope, const std::string& name, std::uint8_t bytes);

  std::vector<Register>& registers_;
  std::vector<Scope> scopes_;
  unsigned count_ = 0;
};

}  // namespace ptx
