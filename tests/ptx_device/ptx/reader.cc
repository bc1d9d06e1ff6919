// See reader.h.
#include "tests/ptx_device/ptx/reader.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace ptx {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

/// The base for a prefix. 0f and 0d introduce the bits of numbers in hexadecimal.
int base_of(char prefix) {
  switch (prefix) {
    case 'f':
    case 'F':
    case 'd':
    case 'D':
      return 16;
    case 'b':
    case 'B':
      return 2;
    default:
      return 0;
  }
}

}  // namespace

void Reader::skip() {
  while (at_ < end_) {
    if (is_space(*at_))
      line_ += *at_++ == '\n';
    else if (!skip_comment())
      return;
  }
}

bool Reader::skip_comment() {
  if (end_ - at_ < 2 || at_[0] != '/') return false;
  if (at_[1] == '/') {
    skip_line();
    return true;
  }
  if (at_[1] != '*') return false;
  for (at_ += 2; at_ + 1 < end_ && !(at_[0] == '*' && at_[1] == '/');) line_ += *at_++ == '\n';
  at_ += 2;
  return true;
}

void Reader::skip_line() { at_ = std::find(at_, end_, '\n'); }

bool Reader::done() {
  skip();
  return at_ >= end_;
}

char Reader::peek() {
  skip();
  return at_ < end_ ? *at_ : '\0';
}

bool Reader::take(char c) {
  if (peek() != c) return false;
  ++at_;
  return true;
}

void Reader::need(char c) {
  if (!take(c)) fail(std::string("'") + c + "' expected");
}

std::string Reader::word() {
  skip();
  const char* begin = at_;
  at_ = std::find_if_not(at_, end_, is_word);
  return {begin, at_};
}

std::string Reader::dotted() {
  skip();
  const char* begin = at_;
  at_ = std::find_if_not(at_, end_, [](char c) { return is_word(c) || c == '.' || c == ':'; });
  return {begin, at_};
}

std::string Reader::until(char stop) {
  skip();
  const char* begin = at_;
  while (at_ < end_ && *at_ != stop) line_ += *at_++ == '\n';
  const std::string text(begin, at_);
  if (at_ < end_) ++at_;
  return text;
}

void Reader::skip_body() {
  for (int depth = 1; depth > 0; ++at_) {
    const char c = peek();
    if (c == '\0') fail("the module ends within a function");
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (depth == 0) continue;
    // Only braces matter, but comments may contain braces.
    while (at_ + 1 < end_ && at_[1] != '{' && at_[1] != '}' && at_[1] != '/')
      line_ += *++at_ == '\n';
  }
}

std::uint64_t Reader::number() {
  std::uint64_t bits = 0;
  if (!parse_number(word(), bits)) fail("number");
  return bits;
}

void Reader::fail(const std::string& what) const {
  const auto left = std::min<std::ptrdiff_t>(60, end_ - at_);
  throw Unsupported("PTX, line " + std::to_string(line_) + ": " + what + " near \"" +
                    std::string(at_, static_cast<std::size_t>(left)) + '"');
}

bool parse_number(const std::string& word, std::uint64_t& bits) {
  if (word.empty() || std::isdigit(static_cast<unsigned char>(word[0])) == 0) return false;
  const int base = word.size() > 2 && word[0] == '0' ? base_of(word[1]) : 0;
  bits = std::strtoull(word.c_str() + (base != 0 ? 2 : 0), nullptr, base);
  return true;
}

unsigned type_bytes(const std::string& type) {
  if (type == "pred") return 0;
  if (type == "f16x2" || type == "bf16x2") return 4;
  const std::size_t digits = type.find_first_of("0123456789");
  if (digits == std::string::npos) throw Unsupported("type " + type);
  return static_cast<unsigned>(std::atoi(type.c_str() + digits)) / 8;
}

}  // namespace ptx
