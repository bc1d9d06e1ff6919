// See module.h: the declarations of a module.
#include "tests/ptx_device/ptx/module.h"

#include "tests/ptx_device/ptx/inlining.h"
#include "tests/ptx_device/ptx/reader.h"

#include <cstdlib>

namespace ptx {
namespace {

unsigned number_in(const std::string& name) {
  const std::size_t digits = name.find_first_of("0123456789");
  return digits == std::string::npos ? 0 : static_cast<unsigned>(std::atoi(name.c_str() + digits));
}

bool is_linkage(const std::string& word) {
  return word == ".visible" || word == ".extern" || word == ".weak" || word == ".common";
}

}  // namespace

Module::Module(std::string text) : text_(std::move(text)) {
  Reader in(text_, 1);
  while (!in.done()) read_item(in);
}

void Module::read_item(Reader& in) {
  const char* begin = in.at();
  const unsigned line = in.line();
  std::string word = in.dotted();
  bool is_extern = false;
  for (; is_linkage(word); word = in.dotted()) is_extern = is_extern || word == ".extern";
  if (word == ".version" || word == ".address_size") {
    in.dotted();
  } else if (word == ".target") {
    target = number_in(in.dotted());
    while (in.take(',')) in.dotted();
  } else if (word == ".file") {
    in.skip_line();
  } else if (word == ".section") {
    in.until('{');
    in.until('}');
  } else if (word == ".pragma") {
    in.until(';');
  } else if (word == ".global" || word == ".const" || word == ".shared") {
    read_variable(in, word == ".shared" ? shared : globals, is_extern);
  } else if (word == ".entry") {
    read_entry(in, begin, line);
  } else if (word == ".func") {
    read_function(in, begin, line);
  } else {
    in.fail("directive " + word);
  }
}

void Module::read_variable(Reader& in, std::vector<Variable>& list, bool is_extern) {
  list.push_back(parse_variable(in));
  list.back().is_extern = is_extern;
  in.need(';');
}

void Module::read_entry(Reader& in, const char* begin, unsigned line) {
  const std::string name = in.word();
  in.until('{');
  in.skip_body();
  entries_[name] = extent(begin, in.at(), line);
}

/// .func (results) name (params) {…}, or a declaration.
void Module::read_function(Reader& in, const char* begin, unsigned line) {
  if (in.take('(')) in.until(')');
  const std::string name = in.word();
  while (in.peek() != ';' && in.peek() != '{') {
    if (in.done()) in.fail("function");
    in.go_to(in.at() + 1);
  }
  if (in.take(';')) return;
  in.take('{');
  in.skip_body();
  functions_[name] = extent(begin, in.at(), line);
}

Module::Extent Module::extent(const char* begin, const char* end, unsigned line) const {
  return {static_cast<std::size_t>(begin - text_.data()), static_cast<std::size_t>(end - begin),
          line};
}

Function Module::parse(const std::string& name, const Extent& extent) const {
  const std::string_view text(text_.data() + extent.begin, extent.length);
  return parse_function(name, Reader(text, extent.line));
}

Function Module::function(const std::string& name) const {
  return inline_calls(*this, parse(name, entries_.at(name)));
}

Function Module::callee(const std::string& name) const { return parse(name, functions_.at(name)); }

std::vector<std::string> Module::names() const {
  std::vector<std::string> names;
  for (const auto& [name, extent] : entries_) names.push_back(name);
  return names;
}

}  // namespace ptx
