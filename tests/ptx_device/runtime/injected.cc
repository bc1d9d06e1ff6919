// See injected.h.
#include "tests/ptx_device/runtime/injected.h"

#include "tests/ptx_device/settings.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

namespace ptx {
namespace {

struct Rule {
  std::string function;
  std::size_t first = 0, last = SIZE_MAX;  // call numbers, starting at 1
  Injected injected;
};

struct Calls {
  std::mutex mutex;
  std::map<std::string, std::size_t, std::less<>> count;
  std::size_t count_of_all = 0;
  std::vector<Rule> from_environment, from_program;
  std::string last_injected;

  Calls();
  std::size_t of(std::string_view function) const;
};
Calls& calls() {
  static auto* calls = new Calls;
  return *calls;
}

/// Errors with permanent effect on the process according to CUDA's documentation, and the loss of a
/// device.
bool breaks_device(int error) {
  static const std::set<int> known = {
      cudaErrorECCUncorrectable,    cudaErrorNvlinkUncorrectable, cudaErrorDevicesUnavailable,
      cudaErrorIllegalAddress,      cudaErrorLaunchTimeout,       cudaErrorAssert,
      cudaErrorHardwareStackError,  cudaErrorIllegalInstruction,  cudaErrorMisalignedAddress,
      cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,           cudaErrorLaunchFailure,
  };
  return known.count(error) != 0;
}

bool read_which(const std::string& which, Rule& rule) {
  if (which == "*") return true;
  char* end = nullptr;
  rule.first = std::strtoull(which.c_str(), &end, 10);
  if (*end != '+') rule.last = rule.first;
  return end != which.c_str() && rule.first != 0;
}

bool read_error(const std::string& error, Injected& injected) {
  char* end = nullptr;
  const long number = std::strtol(error.c_str(), &end, 10);
  injected.error = static_cast<cudaError_t>(number);
  injected.breaks_device = *end == '!' || breaks_device(injected.error);
  return end != error.c_str() && number > 0;
}

bool read(const std::string& clause, Rule& rule) {
  const std::size_t colon = clause.find(':'), equals = clause.find('=');
  if (colon == std::string::npos || equals == std::string::npos || equals < colon) return false;
  rule.function = clause.substr(0, colon);
  return read_which(clause.substr(colon + 1, equals - colon - 1), rule) &&
         read_error(clause.substr(equals + 1), rule.injected);
}

bool read_all(const std::string& asked, std::vector<Rule>& rules) {
  std::istringstream clauses(asked);
  for (std::string clause; std::getline(clauses, clause, ';');) {
    if (clause.empty()) continue;
    if (Rule rule; read(clause, rule)) {
      rules.push_back(rule);
    } else {
      std::fprintf(stderr, "ptx-device: \"%s\" asks for no error that is known\n", clause.c_str());
      return false;
    }
  }
  return true;
}

Calls::Calls() {
  if (!read_all(settings().fail, from_environment)) std::abort();
}

std::size_t Calls::of(std::string_view function) const {
  if (function == "any") return count_of_all;
  const auto found = count.find(function);
  return found == count.end() ? 0 : found->second;
}

const Rule* rule_for(const std::string& function) {
  for (const auto* rules : {&calls().from_environment, &calls().from_program})
    for (const Rule& rule : *rules) {
      if (rule.function != function && rule.function != "any") continue;
      const std::size_t now = calls().of(rule.function);
      if (now >= rule.first && now <= rule.last) return &rule;
    }
  return nullptr;
}

}  // namespace

Injected count_call(const char* function) {
  const std::lock_guard lock(calls().mutex);
  ++calls().count[function];
  ++calls().count_of_all;
  const Rule* rule = rule_for(function);
  if (rule == nullptr) return {};
  calls().last_injected = function;
  return rule->injected;
}

bool ask_for_errors(const std::string& asked) {
  std::vector<Rule> rules;
  if (!read_all(asked, rules)) return false;
  const std::lock_guard lock(calls().mutex);
  for (Rule& rule : rules) {
    const std::size_t before = calls().of(rule.function);
    rule.first += before;
    if (rule.last != SIZE_MAX) rule.last += before;
  }
  calls().from_program = std::move(rules);
  if (!asked.empty()) calls().last_injected.clear();
  return true;
}

std::size_t calls_of(const std::string& function) {
  const std::lock_guard lock(calls().mutex);
  return calls().of(function);
}

const char* last_injected() {
  static thread_local std::string name;
  const std::lock_guard lock(calls().mutex);
  name = calls().last_injected;
  return name.c_str();
}

}  // namespace ptx
