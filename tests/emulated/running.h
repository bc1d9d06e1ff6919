// What the emulator's memory and its fibres know of each other.
#pragma once

#include "tests/emulated/emulator.h"

#include <cstdint>
#include <string>

namespace tersor::emulator {

inline constexpr std::uint32_t kNobody = 0xffffffffu;
inline constexpr std::uint32_t kSeveral = 0xfffffffeu;

/// Where a block stands in the order that `is_last` makes.
enum class Phase : std::uint8_t { kBefore, kAfterTicket, kLast };

/// Who touched a byte last, and when.
struct Stamp {
  std::uint32_t launch = 0;
  std::uint32_t block = 0;
  std::uint32_t thread = kNobody;
  std::uint32_t epoch = 0;
  kernels::Access access = kernels::Access::kRead;
  Phase phase = Phase::kBefore;
};

/// Whether a kernel runs.
bool is_running();

/// The running thread, as it is now.
Stamp stamp_of(kernels::Access access);

/// Throws EmulatorError with the running kernel, block and thread before `what`.
[[noreturn]] void fail(const std::string& what);

}  // namespace tersor::emulator
