// Aligned tables on standard output. Each row is printed at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tersor::bench {

enum class Align : std::uint8_t { kLeft, kRight };

/// A column with a title and, below the title, a unit. The width is at least `width` and fits title
/// and unit.
struct Column {
  std::string title;
  std::string unit = {};
  std::size_t width = 0;
  Align align = Align::kRight;
};

/// Rows of cells, one cell per column. The constructor prints titles, units and a rule. On a
/// terminal, titles are bold.
class Lines {
 public:
  explicit Lines(std::vector<Column> columns);
  void print(const std::vector<std::string>& cells) const;

 private:
  std::string line(const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
};

/// A column and its text in a row.
template <typename Row>
struct Field {
  Column column;
  std::function<std::string(const Row& row)> text;
};

/// A table. The constructor prints the head.
template <typename Row>
class Table {
 public:
  explicit Table(std::vector<Field<Row>> fields)
      : fields_(std::move(fields)), lines_(each(&Field<Row>::column)) {}

  void print(const Row& row) const {
    lines_.print(each([&row](const Field<Row>& field) { return field.text(row); }));
  }

 private:
  auto each(auto member) const {
    std::vector<std::decay_t<decltype(std::invoke(member, fields_[0]))>> all;
    for (const Field<Row>& field : fields_) all.push_back(std::invoke(member, field));
    return all;
  }

  std::vector<Field<Row>> fields_;
  Lines lines_;
};

/// The width of the longest text over all things.
template <typename Things, typename Text = std::identity>
std::size_t longest(const Things& things, Text text = {}) {
  std::size_t width = 0;
  for (const auto& thing : things) width = std::max(width, std::invoke(text, thing).size());
  return width;
}

/// True if standard output is a terminal of a user and NO_COLOR is not set. Under an MPI launcher
/// the result is false, because a launcher may give each rank a terminal regardless of the output.
bool is_terminal();

/// "800 ns", "12.3 us", "1.23 ms", "4.56 s".
std::string format_seconds(double seconds);
/// "512 B", "64.0 KiB", "1.50 MiB", …
std::string format_bytes(double bytes);
/// A multiple of 1024 has a suffix: "64Mi", "1000".
std::string format_count(std::size_t count);
/// "1234.5"
std::string format_microseconds(double seconds);
/// "1.23e-03"; "0" for zero.
std::string format_error(double error);

}  // namespace tersor::bench
