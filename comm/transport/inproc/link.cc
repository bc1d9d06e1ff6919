// Links as text: RATE[,LATENCY[,overhead=FACTOR]].
#include <tersor/error.h>
#include <tersor/inprocess.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

namespace tersor {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// The larger ones first: text() takes the first that leaves at least 1.
constexpr std::array<Unit, 4> kRates{{{"Gbit", 1e9}, {"Mbit", 1e6}, {"Kbit", 1e3}, {"bit", 1}}};
constexpr std::array<Unit, 4> kTimes{{{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}}};

[[noreturn]] void refuse(std::string_view text) {
  throw InvalidArgument("\"" + std::string(text) +
                        "\" is no link: write RATE[,LATENCY[,overhead=FACTOR]], e.g. 1Gbit,50us or "
                        "100Mbit or 25Gbit,10us,overhead=1.046, or none; rates above 0 in bit, "
                        "Kbit, Mbit or Gbit, latencies in ns, us, ms or s, an overhead of at least "
                        "1");
}

/// The number that `text` begins with, of at least `least`; the rest stays in `text`.
std::optional<double> take_number(std::string_view& text, double least) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < least) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// A number and its unit, in the smallest unit.
std::optional<double> parse_quantity(std::string_view text, std::span<const Unit> units) {
  const auto number = take_number(text, 0);
  if (!number) return std::nullopt;
  for (const Unit& unit : units)
    if (text == unit.name) return *number * unit.factor;
  return std::nullopt;
}

std::optional<double> parse_overhead(std::string_view text) {
  constexpr std::string_view kKey = "overhead=";
  if (!text.starts_with(kKey)) return std::nullopt;
  text.remove_prefix(kKey.size());
  const auto factor = take_number(text, 1);
  return text.empty() ? factor : std::nullopt;
}

/// The text up to the next comma, and takes both away.
std::string_view take_field(std::string_view& text) {
  const auto comma = text.find(',');
  const auto field = text.substr(0, comma);
  text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  return field;
}

std::string number_text(double number) {
  std::array<char, 32> characters{};
  const auto end =
      std::to_chars(characters.data(), characters.data() + characters.size(), number).ptr;
  return {characters.data(), end};
}

std::string quantity_text(double value, std::span<const Unit> units) {
  for (const Unit& unit : units)
    if (value >= unit.factor) return number_text(value / unit.factor) + std::string(unit.name);
  return number_text(value) + std::string(units.back().name);
}

}  // namespace

std::string Link::text() const {
  if (!emulated()) return "none";
  std::string text = quantity_text(bits_per_second, kRates);
  if (latency.count() != 0 || overhead != 1)
    text.append(",").append(quantity_text(static_cast<double>(latency.count()), kTimes));
  if (overhead != 1) text.append(",overhead=").append(number_text(overhead));
  return text;
}

Link parse_link(std::string_view text) {
  if (text == "none") return {};
  const bool dangling = text.ends_with(',');
  std::string_view rest = text;
  const auto rate = parse_quantity(take_field(rest), kRates);
  if (!rate || *rate <= 0 || dangling) refuse(text);
  Link link{.bits_per_second = *rate};
  if (rest.empty()) return link;
  const auto latency = parse_quantity(take_field(rest), kTimes);
  if (!latency || *latency > 1e18) refuse(text);
  link.latency = std::chrono::nanoseconds(std::llround(*latency));
  if (rest.empty()) return link;
  const auto overhead = parse_overhead(rest);
  if (!overhead) refuse(text);
  link.overhead = *overhead;
  return link;
}

}  // namespace tersor
