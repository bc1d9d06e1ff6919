#include "comm/transport/host/signatures.h"

#include <array>
#include <charconv>

namespace tersor::host {
namespace {

constexpr std::string_view kBegin = "; signatures 0x", kMiddle = " there, 0x", kEnd = " here";

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 16> digits;
  return {digits.data(),
          std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr};
}

/// Takes what stands before a number, and the number, from the beginning of a text.
std::optional<std::uint64_t> take_number(std::string_view& text, std::string_view before) {
  if (!text.starts_with(before)) return {};
  text.remove_prefix(before.size());
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc{}) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

}  // namespace

std::string signatures_text(std::uint64_t there, std::uint64_t here) {
  return std::string(kBegin) + hexadecimal(there) + std::string(kMiddle) + hexadecimal(here) +
         std::string(kEnd);
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> signatures_in(std::string_view text) {
  const auto found = text.find(kBegin);
  if (found == std::string_view::npos) return {};
  text.remove_prefix(found);
  const auto there = take_number(text, kBegin), here = take_number(text, kMiddle);
  if (!there || !here || !text.starts_with(kEnd)) return {};
  return std::pair(*there, *here);
}

}  // namespace tersor::host
