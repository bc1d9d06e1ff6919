// See accesses.h: selects the access of a statement.
#include "tests/ptx_device/decode/accesses.h"

#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/whole.h"

#include <algorithm>

namespace ptx {
namespace {

unsigned count_of(const Decoder& decoder) {
  return decoder.has("v2") ? 2 : decoder.has("v4") ? 4 : decoder.has("v8") ? 8 : 1;
}

std::vector<Operand> values_of(const Decoder& decoder, const Operand& value) {
  std::vector<Operand> values = {value};
  if (value.kind == Operand::kVec) values = value.parts;
  if (values.size() != count_of(decoder)) decoder.refuse();
  return values;
}

/// The size of a thread's registers. Numbers are as long as the type, but registers have at least 2
/// bytes.
unsigned register_bytes(const Decoder& decoder, const std::vector<Operand>& values) {
  for (const Operand& value : values)
    if (value.kind == Operand::kReg) return decoder.register_bytes(value);
  return std::max(decoder.bytes(), 2u);
}

AccessType decode_values(Decoder& decoder, Instruction& ins, const Operand& memory,
                         const Operand& value) {
  decoder.refuse_parts({"async", "bulk", "L2::cache_hint"});
  decoder.address(ins, memory);
  const std::vector<Operand> values = values_of(decoder, value);
  const unsigned bytes = register_bytes(decoder, values);
  for (std::size_t i = 0; i < values.size(); ++i)
    ins.v[i] = values[i].kind == Operand::kSink ? kNoPlace : decoder.in(values[i], bytes);
  ins.count = static_cast<std::uint8_t>(values.size());
  const Space space = decoder.space_of(memory);
  const bool is_fixed = space == Space::kParam && decoder.fix_param(ins, memory);
  return {decoder.type(), bytes, ins.count, space, is_fixed};
}

void decode_load(Decoder& decoder, Instruction& ins) {
  const auto access = decode_values(decoder, ins, decoder.operand(1), decoder.operand(0));
  ins.run = decoder.known(load_of(access));
  wrap_load(decoder, ins, access);
}

void decode_store(Decoder& decoder, Instruction& ins) {
  const auto access = decode_values(decoder, ins, decoder.operand(0), decoder.operand(1));
  ins.run = decoder.known(store_of(access));
  wrap_store(decoder, ins, access);
}

}  // namespace

void add_accesses(Handlers& handlers) {
  handlers["ld"] = decode_load;
  handlers["ldu"] = decode_load;
  handlers["st"] = decode_store;
}

}  // namespace ptx
