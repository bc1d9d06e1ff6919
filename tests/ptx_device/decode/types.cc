// See types.h.
#include "tests/ptx_device/decode/types.h"

#include <cstdlib>
#include <unordered_map>

namespace ptx {
namespace {

struct Type {
  unsigned bytes;
  Family family;
};

const std::unordered_map<std::string, Type>& types() {
  constexpr Family kInteger = Family::kInteger, kHalf = Family::kHalf, kFloat = Family::kFloat;
  static const std::unordered_map<std::string, Type> known = {{"pred", {0, Family::kPredicate}},
                                                              {"b8", {1, kInteger}},
                                                              {"u8", {1, kInteger}},
                                                              {"s8", {1, kInteger}},
                                                              {"b16", {2, kInteger}},
                                                              {"u16", {2, kInteger}},
                                                              {"s16", {2, kInteger}},
                                                              {"b32", {4, kInteger}},
                                                              {"u32", {4, kInteger}},
                                                              {"s32", {4, kInteger}},
                                                              {"b64", {8, kInteger}},
                                                              {"u64", {8, kInteger}},
                                                              {"s64", {8, kInteger}},
                                                              {"b128", {16, kInteger}},
                                                              {"f16", {2, kHalf}},
                                                              {"bf16", {2, kHalf}},
                                                              {"f16x2", {4, kHalf}},
                                                              {"bf16x2", {4, kHalf}},
                                                              {"f32", {4, kFloat}},
                                                              {"f64", {8, kFloat}},
                                                              {"u16x2", {4, kInteger}},
                                                              {"s16x2", {4, kInteger}}};
  return known;
}

}  // namespace

bool is_type(const std::string& word) { return types().count(word) != 0; }

unsigned bytes_of_type(const std::string& type) {
  const auto found = types().find(type);
  return found == types().end() ? 0 : found->second.bytes;
}

Family family_of(const std::string& type) {
  const auto found = types().find(type);
  return found == types().end() ? Family::kNone : found->second.family;
}

}  // namespace ptx
