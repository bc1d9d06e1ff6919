// Reads PTX text word by word and skips spaces and comments.
#pragma once

#include "tests/ptx_device/ptx/module.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace ptx {

class Reader {
 public:
  Reader(std::string_view text, unsigned line)
      : at_(text.data()), end_(text.data() + text.size()), line_(line) {}

  bool done();
  /// The next character after spaces; 0 at the end.
  char peek();
  bool take(char c);
  void need(char c);
  std::string word();
  /// A directive or special register, including dots.
  std::string dotted();
  /// The text before `stop`. Also reads the character `stop`.
  std::string until(char stop);
  void skip_line();
  /// Skips the body of a function after its opening brace.
  void skip_body();
  std::uint64_t number();

  const char* at() const { return at_; }
  void go_to(const char* at) { at_ = at; }
  unsigned line() const { return line_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  void skip();
  bool skip_comment();

  const char* at_;
  const char* end_;
  unsigned line_;
};

/// Returns false if the word is not a number. A floating-point number gives the bits of its value.
bool parse_number(const std::string& word, std::uint64_t& bits);
/// The size of a type in bytes; 0 for predicates.
unsigned type_bytes(const std::string& type);
/// Parses alignment, type, name, length and initial value: .align 4 .b8 name[8] = {1, 2}
Variable parse_variable(Reader& in);
/// Parses a function's text up to the end of its body.
Function parse_function(const std::string& name, Reader in);

}  // namespace ptx
