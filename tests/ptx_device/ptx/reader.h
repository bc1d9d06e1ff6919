// Reads PTX text word by word, past spaces and comments.
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
  /// The next character that is no space; 0 at the end.
  char peek();
  bool take(char c);
  void need(char c);
  std::string word();
  /// A directive or special register, dots included.
  std::string dotted();
  /// What stands before a character, which is taken too.
  std::string until(char stop);
  void skip_line();
  /// The body of a function, whose opening brace was taken.
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

/// False: the word is no number. Floating-point numbers give their bits.
bool parse_number(const std::string& word, std::uint64_t& bits);
/// The length of a type; 0: a predicate.
unsigned type_bytes(const std::string& type);
/// Alignment, type, name, length and what it holds at first: .align 4 .b8 name[8] = {1, 2}
Variable parse_variable(Reader& in);
/// A function's text, which ends with its body.
Function parse_function(const std::string& name, Reader in);

}  // namespace ptx
