// See scopes.h.
#include "tests/ptx_device/ptx/scopes.h"

#include <cctype>
#include <cstdlib>

namespace ptx {
namespace {

std::size_t begin_of_digits(const std::string& name) {
  std::size_t begin = name.size();
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(name[begin - 1])) != 0) --begin;
  return begin;
}

}  // namespace

int Scopes::register_of(const std::string& name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const int found = find(*scope, name);
    if (found >= 0) return found;
  }
  return -1;
}

int Scopes::find(Scope& scope, const std::string& name) {
  if (const auto known = scope.known.find(name); known != scope.known.end()) return known->second;
  if (const auto own = scope.names.find(name); own != scope.names.end())
    return add(scope, name, own->second);
  const std::size_t digits = begin_of_digits(name);
  if (digits == name.size()) return -1;
  const auto range = scope.ranges.find(name.substr(0, digits));
  if (range == scope.ranges.end()) return -1;
  const bool in_range = std::strtoul(name.c_str() + digits, nullptr, 10) < range->second.count;
  return in_range ? add(scope, name, range->second.bytes) : -1;
}

int Scopes::add(Scope& scope, const std::string& name, std::uint8_t bytes) {
  registers_.push_back({name, bytes});
  return scope.known[name] = static_cast<int>(registers_.size()) - 1;
}

std::string Scopes::unique(const std::string& name) const {
  if (name.rfind("$L__", 0) == 0 || scopes_.size() <= 1) return name;
  return name + "@" + std::to_string(scopes_.back().id);
}

}  // namespace ptx
