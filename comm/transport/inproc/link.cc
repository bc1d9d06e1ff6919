// The text format of links: RATE|none[,LATENCY][,overhead=FACTOR][,per_host=RANKS].
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

// Largest units first: text() takes the first unit with a value of at least 1.
constexpr std::array<Unit, 4> kRates{{{"Gbit", 1e9}, {"Mbit", 1e6}, {"Kbit", 1e3}, {"bit", 1}}};
constexpr std::string_view kOverhead = "overhead=", kPerHost = "per_host=";
constexpr std::array<Unit, 4> kTimes{{{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}}};

[[noreturn]] void refuse(std::string_view text) {
  throw InvalidArgumentError(
      "link is \"" + std::string(text) +
      "\": write RATE|none[,LATENCY][,overhead=FACTOR]"
      "[,per_host=RANKS], e.g. 1Gbit,50us or 25Gbit,10us,overhead=1.046 or "
      "100Mbit,per_host=2 or none; rates above 0 in bit, Kbit, Mbit or Gbit, "
      "latencies in ns, us, ms or s, an overhead of at least 1, at least 1 rank "
      "per host; rate none takes neither latency nor overhead");
}

/// Parses and removes a number of at least `minimum` at the start of `text`.
std::optional<double> parse_number(std::string_view& text, double minimum) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < minimum) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// Parses a number with a unit. Returns the value in the smallest unit.
std::optional<double> parse_quantity(std::string_view text, std::span<const Unit> units) {
  const auto number = parse_number(text, 0);
  if (!number) return std::nullopt;
  for (const Unit& unit : units)
    if (text == unit.name) return *number * unit.factor;
  return std::nullopt;
}

std::optional<double> parse_overhead(std::string_view text) {
  const auto factor = parse_number(text, 1);
  return text.empty() ? factor : std::nullopt;
}

std::optional<int> parse_ranks(std::string_view text) {
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && ranks >= 1 ? std::optional(ranks) : std::nullopt;
}

std::optional<std::chrono::nanoseconds> parse_latency(std::string_view text) {
  const auto latency = parse_quantity(text, kTimes);
  if (!latency || *latency > 1e18) return std::nullopt;
  return std::chrono::nanoseconds(std::llround(*latency));
}

/// Splits a text at commas.
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : remaining_(text) {}

  bool has_more() const { return has_more_; }
  bool next_is(std::string_view key) const { return has_more_ && remaining_.starts_with(key); }
  std::string_view next(std::string_view key = {}) {
    const auto comma = remaining_.find(',');
    const auto field = remaining_.substr(0, comma).substr(key.size());
    has_more_ = comma != std::string_view::npos;
    remaining_.remove_prefix(has_more_ ? comma + 1 : remaining_.size());
    return field;
  }

 private:
  std::string_view remaining_;
  bool has_more_ = true;
};

/// Stores a parsed field. Returns false without a value.
template <typename T>
bool set(T& target, const std::optional<T>& value) {
  if (value) target = *value;
  return value.has_value();
}

/// Reads rate, latency and overhead, in this order. Latency and overhead are optional.
bool read_emulation(Link& link, FieldReader& fields) {
  const auto rate = parse_quantity(fields.next(), kRates);
  if (!rate || *rate <= 0) return false;
  link.bits_per_second = *rate;
  const bool named = fields.next_is(kOverhead) || fields.next_is(kPerHost);
  if (fields.has_more() && !named && !set(link.latency, parse_latency(fields.next()))) return false;
  return !fields.next_is(kOverhead) || set(link.overhead, parse_overhead(fields.next(kOverhead)));
}

bool read_hosts(Link& link, FieldReader& fields) {
  return !fields.next_is(kPerHost) || set(link.ranks_per_host, parse_ranks(fields.next(kPerHost)));
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

std::string emulation_text(const Link& link) {
  if (!link.emulated()) return "none";
  std::string text = quantity_text(link.bits_per_second, kRates);
  if (link.latency.count() != 0 || link.overhead != 1)
    text.append(",").append(quantity_text(static_cast<double>(link.latency.count()), kTimes));
  if (link.overhead != 1) text.append(",").append(kOverhead).append(number_text(link.overhead));
  return text;
}

}  // namespace

std::string Link::text() const {
  std::string text = emulation_text(*this);
  if (ranks_per_host != 1) text.append(",").append(kPerHost).append(std::to_string(ranks_per_host));
  return text;
}

Link parse_link(std::string_view text) {
  Link link;
  FieldReader fields(text);
  const bool none = fields.next() == "none";
  if (!none) fields = FieldReader(text);
  if ((!none && !read_emulation(link, fields)) || !read_hosts(link, fields) || fields.has_more())
    refuse(text);
  return link;
}

}  // namespace tersor
