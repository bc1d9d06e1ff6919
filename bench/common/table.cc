// Aligned tables, and the formats of numbers in tables.

#include "bench/common/table.h"

#include <fmt/color.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <span>

namespace tersor::bench {
namespace {

struct Unit {
  double factor;
  const char* name;
};

/// Formats `value` with three digits, in the largest unit for which the number is at least 1.
std::string in_units(double value, std::span<const Unit> units) {
  const Unit* unit = &units.back();
  for (const Unit& larger : units)
    if (value >= larger.factor) {
      unit = &larger;
      break;
    }
  const double scaled = value / unit->factor;
  const int digits = scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", scaled, digits, unit->name);
}

constexpr auto kSpace = "  ";

}  // namespace

Lines::Lines(std::vector<Column> columns) : columns_(std::move(columns)) {
  std::vector<std::string> titles, units, rules;
  for (Column& column : columns_) {
    column.width = std::max({column.width, column.title.size(), column.unit.size()});
    titles.push_back(column.title);
    units.push_back(column.unit);
    rules.push_back(std::string(column.width, '-'));
  }
  const auto bold = is_terminal() ? fmt::text_style(fmt::emphasis::bold) : fmt::text_style();
  fmt::print("{}\n", fmt::styled(line(titles), bold));
  if (longest(units) != 0) print(units);
  print(rules);
}

std::string Lines::line(const std::vector<std::string>& cells) const {
  std::string line;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (i != 0) line += kSpace;
    const bool left = columns_[i].align == Align::kLeft;
    line += left ? fmt::format("{:<{}}", cells[i], columns_[i].width)
                 : fmt::format("{:>{}}", cells[i], columns_[i].width);
  }
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

void Lines::print(const std::vector<std::string>& cells) const {
  fmt::print("{}\n", line(cells));
  std::fflush(stdout);
}

bool is_terminal() {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  constexpr const char* kLaunchers[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
  return isatty(STDOUT_FILENO) == 1 && !is_set("NO_COLOR") &&
         std::ranges::none_of(kLaunchers, is_set);
}

std::string format_seconds(double seconds) {
  constexpr Unit kUnits[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
  return in_units(seconds, kUnits);
}

std::string format_bytes(double bytes) {
  constexpr Unit kUnits[] = {{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}};
  return bytes < 1024 ? fmt::format("{:.0f} B", bytes) : in_units(bytes, kUnits);
}

std::string format_count(std::size_t count) {
  constexpr const char* kSuffixes[] = {"", "Ki", "Mi", "Gi", "Ti"};
  std::size_t power = 0;
  while (count != 0 && count % 1024 == 0 && power + 1 < std::size(kSuffixes)) {
    count /= 1024;
    ++power;
  }
  return fmt::format("{}{}", count, kSuffixes[power]);
}

std::string format_microseconds(double seconds) { return fmt::format("{:.1f}", seconds * 1e6); }

std::string format_error(double error) { return error == 0 ? "0" : fmt::format("{:.2e}", error); }

}  // namespace tersor::bench
