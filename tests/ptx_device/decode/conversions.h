// cvt: shared by its files. A function is selected by two types and two register sizes. A register
// may be wider than its type.
#pragma once

#include "tests/ptx_device/decode/decoder.h"

#include <cstdint>
#include <string>
#include <type_traits>

namespace ptx {

enum Round : std::uint8_t { kNone, kRn, kRz, kRm, kRp, kRni, kRzi, kRmi, kRpi };
/// Bits of an instruction's `how` in addition to the rounding.
constexpr std::uint8_t kRoundMask = 15, kSat = 16, kFtz = 32;

struct Conversion {
  std::string to, from;
  unsigned to_bytes, from_bytes;  // of the registers
  std::uint8_t how;

  Round round() const { return static_cast<Round>(how & kRoundMask); }
};

// Each function returns null if the conversion is not supported.
WarpFunction integer_to_integer(const Conversion& conversion);
WarpFunction float_to_integer(const Conversion& conversion);
WarpFunction integer_to_float(const Conversion& conversion);
WarpFunction float_to_float(const Conversion& conversion);
/// Converts two f32 to a pair of f16 or bf16.
WarpFunction floats_to_pair(const Conversion& conversion);

/// Rounds to an integer, for integer types and for the modifiers .rni etc.
double rounded(double value, unsigned how);

/// Calls choose.template operator()<T, R>() for an integer type and its register type.
template <class F>
WarpFunction by_integer_in_register(const std::string& type, unsigned bytes, F choose) {
  if (type == "u8") return by_register<std::uint8_t>(bytes, choose);
  if (type == "s8") return by_register<std::int8_t>(bytes, choose);
  if (type == "u16") return by_register<std::uint16_t>(bytes, choose);
  if (type == "s16") return by_register<std::int16_t>(bytes, choose);
  if (type == "u32") return by_register<std::uint32_t>(bytes, choose);
  if (type == "s32") return by_register<std::int32_t>(bytes, choose);
  if (type == "u64") return by_register<std::uint64_t>(bytes, choose);
  if (type == "s64") return by_register<std::int64_t>(bytes, choose);
  return nullptr;
}

}  // namespace ptx
