// See conversions.h: selects the conversion of a statement.
#include "tests/ptx_device/decode/conversions.h"
#include "tests/ptx_device/decode/rounding.h"

#include <cmath>

namespace ptx {
namespace {

std::uint8_t how_of(const Decoder& decoder) {
  static const std::unordered_map<std::string, std::uint8_t> known = {
      {"rn", kRn},   {"rz", kRz},   {"rm", kRm},   {"rp", kRp},   {"rni", kRni},
      {"rzi", kRzi}, {"rmi", kRmi}, {"rpi", kRpi}, {"sat", kSat}, {"ftz", kFtz}};
  unsigned how = 0;
  for (std::size_t i = 1; i + 2 < decoder.op().size(); ++i) {
    const auto found = known.find(decoder.op()[i]);
    if (found == known.end()) decoder.refuse();
    how |= found->second;
  }
  return static_cast<std::uint8_t>(how);
}

bool is_pair(const std::string& type) { return type == "f16x2" || type == "bf16x2"; }
bool is_integer(const std::string& type) { return family_of(type) == Family::kInteger; }

unsigned source_bytes(const Decoder& decoder, const std::string& type) {
  const Operand& source = decoder.operand(1);
  return source.kind == Operand::kReg ? decoder.register_bytes(source) : bytes_of_type(type);
}

WarpFunction function_of(const Conversion& conversion) {
  if (is_pair(conversion.to)) return floats_to_pair(conversion);
  const bool from_integer = is_integer(conversion.from);
  if (is_integer(conversion.to))
    return from_integer ? integer_to_integer(conversion) : float_to_integer(conversion);
  return from_integer ? integer_to_float(conversion) : float_to_float(conversion);
}

void decode_cvt(Decoder& decoder, Instruction& ins) {
  const std::string &to = decoder.op()[decoder.op().size() - 2], &from = decoder.op().back();
  const Conversion conversion{to, from, decoder.register_bytes(decoder.operand(0)),
                              source_bytes(decoder, from), how_of(decoder)};
  for (const auto& [type, bytes] :
       {std::pair(to, conversion.to_bytes), {from, conversion.from_bytes}})
    if (!is_integer(type) && bytes != bytes_of_type(type)) decoder.refuse();
  ins.run = function_of(conversion);
  if (ins.run == nullptr) decoder.refuse("a conversion or rounding that is not done here");
  ins.how = conversion.how;
  direct_rounding(decoder, ins);
  ins.d = decoder.out(0, conversion.to_bytes);
  ins.a = decoder.in(1, conversion.from_bytes);
  if (is_pair(to)) ins.b = decoder.in(2, conversion.from_bytes);
}

}  // namespace

double rounded(double value, unsigned how) {
  switch (how & kRoundMask) {
    case kRni:
      return std::nearbyint(value);
    case kRzi:
      return std::trunc(value);
    case kRmi:
      return std::floor(value);
    case kRpi:
      return std::ceil(value);
    default:
      return value;
  }
}

void add_conversions(Handlers& handlers) { handlers["cvt"] = decode_cvt; }

}  // namespace ptx
