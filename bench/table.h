// Aligned tables on standard output, a row as soon as it is known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tersor::bench {

enum class Align : std::uint8_t { kLeft, kRight };

/// A column; `unit` stands below the title. At least as wide as both, and as `width`.
struct Column {
  std::string title;
  std::string unit = {};
  std::size_t width = 0;
  Align align = Align::kRight;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);

  /// Titles, units and a line; the titles in bold on a terminal.
  void print_head() const;
  /// One cell a column.
  void print_row(std::span<const std::string> cells) const;

 private:
  std::string line(std::span<const std::string> cells) const;

  std::vector<Column> columns_;
};

/// The width of the longest.
std::size_t longest(std::span<const std::string> texts);

/// Whether a person looks at standard output: a terminal, but not one that an MPI launcher made (it
/// gives each rank a terminal, whatever it does with the output), and NO_COLOR is not set.
bool is_terminal();

/// "800 ns", "12.3 us", "1.23 ms", "4.56 s".
std::string format_seconds(double seconds);
/// "512 B", "64.0 KiB", "1.50 MiB", …
std::string format_bytes(double bytes);
/// A count with a suffix of 1024 where it is a multiple of it: "64Mi", "1000".
std::string format_count(std::size_t count);
/// "1.23e-03"; "0" for zero.
std::string format_error(double error);

}  // namespace tersor::bench
