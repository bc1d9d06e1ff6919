// How errors name two signatures that differ, so that who knows what they are made of can say more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tersor::host {

/// "; signatures 0x12 there, 0x34 here"
std::string signatures_text(std::uint64_t there, std::uint64_t here);

/// Those of the first such text, there and here.
std::optional<std::pair<std::uint64_t, std::uint64_t>> signatures_in(std::string_view text);

}  // namespace tersor::host
