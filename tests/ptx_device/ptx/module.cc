// Reads PTX. See module.h.
#include "tests/ptx_device/ptx/module.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

namespace ptx {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

unsigned type_bytes(std::string_view type) {
  if (type == "pred") return 0;
  if (type == "f16x2" || type == "bf16x2") return 4;
  if (type == "b128") return 16;
  std::size_t digits = type.find_first_of("0123456789");
  if (digits == std::string_view::npos) throw Unsupported("type " + std::string(type));
  return static_cast<unsigned>(std::atoi(std::string(type.substr(digits)).c_str())) / 8;
}

/// Reads words, numbers and signs one after the other.
class Reader {
 public:
  Reader(const char* begin, const char* end, unsigned line) : at_(begin), end_(end), line_(line) {}

  void skip() {
    while (at_ < end_) {
      if (*at_ == '\n') {
        ++line_;
        ++at_;
      } else if (std::isspace(static_cast<unsigned char>(*at_)) != 0) {
        ++at_;
      } else if (at_ + 1 < end_ && at_[0] == '/' && at_[1] == '/') {
        while (at_ < end_ && *at_ != '\n') ++at_;
      } else if (at_ + 1 < end_ && at_[0] == '/' && at_[1] == '*') {
        at_ += 2;
        while (at_ + 1 < end_ && !(at_[0] == '*' && at_[1] == '/')) line_ += *at_++ == '\n';
        at_ += 2;
      } else {
        return;
      }
    }
  }
  bool done() {
    skip();
    return at_ >= end_;
  }
  char peek() {
    skip();
    return at_ < end_ ? *at_ : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void need(char c) {
    if (!take(c)) fail(std::string("'") + c + "' expected");
  }
  std::string word() {
    skip();
    const char* begin = at_;
    while (at_ < end_ && is_word(*at_)) ++at_;
    return {begin, at_};
  }
  /// A directive or special register, dots included.
  std::string dotted() {
    skip();
    const char* begin = at_;
    while (at_ < end_ && (is_word(*at_) || *at_ == '.' || *at_ == ':')) ++at_;
    return {begin, at_};
  }
  std::string until(char stop) {
    skip();
    const char* begin = at_;
    while (at_ < end_ && *at_ != stop) line_ += *at_++ == '\n';
    return {begin, at_++};
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Unsupported("PTX, line " + std::to_string(line_) + ": " + what + " near \"" +
                      std::string(at_, std::min<std::size_t>(60, end_ - at_)) + '"');
  }

  const char* at_;
  const char* end_;
  unsigned line_;
};

bool parse_number(const std::string& word, std::uint64_t& bits) {
  if (word.empty() || std::isdigit(static_cast<unsigned char>(word[0])) == 0) return false;
  if (word.size() > 2 && word[0] == '0' && (word[1] == 'f' || word[1] == 'F')) {
    bits = std::strtoull(word.c_str() + 2, nullptr, 16);
  } else if (word.size() > 2 && word[0] == '0' && (word[1] == 'd' || word[1] == 'D')) {
    bits = std::strtoull(word.c_str() + 2, nullptr, 16);
  } else if (word.size() > 2 && word[0] == '0' && (word[1] == 'b' || word[1] == 'B')) {
    bits = std::strtoull(word.c_str() + 2, nullptr, 2);
  } else {
    bits = std::strtoull(word.c_str(), nullptr, 0);
  }
  return true;
}

/// name, alignment, length and what it holds at first: .align 4 .b8 name[8] = {1, 2}
Variable parse_variable(Reader& in) {
  Variable variable;
  std::string type;
  while (in.peek() == '.') {
    std::string word = in.dotted().substr(1);
    if (word == "align") {
      variable.align = static_cast<unsigned>(std::stoul(in.word()));
    } else if (word == "ptr" || word == "global" || word == "const" || word == "shared" ||
               word == "local" || word == "attribute" || word == "volatile") {
      if (word == "attribute") in.until(')');
    } else if (word == "v2" || word == "v4") {
      in.fail("vector variable");
    } else {
      type = word;
    }
  }
  const std::size_t element = type_bytes(type);
  variable.align = std::max<unsigned>(variable.align, static_cast<unsigned>(element));
  variable.name = in.word();
  std::size_t count = 1;
  while (in.take('[')) {
    if (in.peek() == ']') {
      count = 0;
    } else {
      count *= std::stoul(in.word());
    }
    in.need(']');
  }
  variable.bytes = count * element;
  if (!in.take('=')) return variable;
  const bool is_list = in.take('{');
  int depth = 1;
  do {
    while (in.take('{')) ++depth;
    bool negative = in.take('-');
    std::string word = in.word();
    std::uint64_t bits = 0;
    unsigned bytes = static_cast<unsigned>(element);
    if (!parse_number(word, bits)) {
      if (word == "generic" && in.take('(')) {
        word = in.word();
        in.need(')');
      }
      std::uint64_t add = 0;
      if (in.take('+')) parse_number(in.word(), add);
      variable.addresses.emplace_back(variable.init.size(), word);
      bits = add;
    }
    if (negative) bits = -bits;
    for (unsigned i = 0; i < bytes; ++i)
      variable.init.push_back(static_cast<std::uint8_t>(bits >> (8 * i)));
    while (is_list && in.peek() == '}' && depth > 1) {
      in.take('}');
      --depth;
    }
  } while (is_list && in.take(','));
  if (is_list) in.need('}');
  if (variable.bytes == 0) variable.bytes = variable.init.size();
  variable.init.resize(variable.bytes);
  return variable;
}

/// The body of a function.
class FunctionReader {
 public:
  FunctionReader(Function& function, Reader in) : function_(function), in_(in) {}

  void read() {
    head();
    in_.need('{');
    scopes_.push_back({});
    while (!scopes_.empty()) {
      if (in_.done()) in_.fail("the function does not end");
      statement();
    }
  }

 private:
  struct Range {
    unsigned count;
    std::uint8_t bytes;
  };
  struct Scope {
    unsigned id = 0;
    std::unordered_map<std::string, Range> ranges;
    std::unordered_map<std::string, std::uint8_t> names;
    std::unordered_map<std::string, int> known;
  };

  void head() {
    in_.until('(');
    while (in_.peek() == '.') {
      in_.dotted();  // .param
      Variable param = parse_variable(in_);
      function_.params.push_back(std::move(param));
      if (!in_.take(',')) break;
    }
    in_.need(')');
    while (in_.peek() == '.') {
      const std::string word = in_.dotted();
      if (word == ".pragma") {
        in_.until(';');
        continue;
      }
      unsigned values[3] = {1, 1, 1};
      for (unsigned& value : values) {
        if (std::isdigit(static_cast<unsigned char>(in_.peek())) == 0) break;
        value = static_cast<unsigned>(std::stoul(in_.word()));
        if (!in_.take(',')) break;
      }
      if (word == ".maxntid") function_.max_threads = values[0] * values[1] * values[2];
      if (word == ".minnctapersm") function_.min_blocks = values[0];
      if (word == ".reqntid") std::copy(values, values + 3, function_.required);
    }
  }

  void statement() {
    if (in_.take('{')) {
      scopes_.push_back({++scope_count_, {}, {}, {}});
      return;
    }
    if (in_.take('}')) {
      scopes_.pop_back();
      return;
    }
    if (in_.take(';')) return;
    if (in_.peek() == '.') return directive();
    Statement statement;
    const char* begin = in_.at_;
    statement.line = in_.line_;
    if (in_.take('@')) {
      statement.guard_negated = in_.take('!');
      statement.guard = register_of(in_.word());
      if (statement.guard < 0) in_.fail("a guard that is no predicate");
    }
    in_.skip();
    const char* op_begin = in_.at_;
    std::string op = in_.dotted();
    // A label: everything to the colon. "L1::no_allocate" is no label.
    const std::size_t colon = op.find(':');
    if (colon != std::string::npos && op.compare(colon, 2, "::") != 0) {
      in_.at_ = op_begin + colon + 1;
      function_.labels[label(op.substr(0, colon))] =
          static_cast<unsigned>(function_.statements.size());
      last_label_ = label(op.substr(0, colon));
      return;
    }
    std::size_t part = 0;
    while (part <= op.size()) {
      std::size_t dot = op.find('.', part);
      if (dot == std::string::npos) dot = op.size();
      statement.op.push_back(op.substr(part, dot - part));
      part = dot + 1;
    }
    if (in_.peek() != ';') {
      do statement.operands.push_back(operand());
      while (in_.take(','));
    }
    statement.text.assign(begin, in_.at_);
    std::replace(statement.text.begin(), statement.text.end(), '\n', ' ');
    in_.need(';');
    statement.used_bytes = used_bytes_;
    used_bytes_ = ~std::uint64_t{0};
    function_.statements.push_back(std::move(statement));
  }

  void directive() {
    const std::string word = in_.dotted();
    if (word == ".reg") {
      std::string type = in_.dotted().substr(1);
      const auto bytes = static_cast<std::uint8_t>(type_bytes(type));
      do {
        const std::string name = in_.word();
        if (in_.take('<')) {
          scopes_.back().ranges[name] = {static_cast<unsigned>(std::stoul(in_.word())), bytes};
          in_.need('>');
        } else {
          scopes_.back().names[name] = bytes;
        }
      } while (in_.take(','));
      in_.need(';');
    } else if (word == ".shared" || word == ".local") {
      Variable variable = parse_variable(in_);
      in_.need(';');
      (word == ".shared" ? function_.shared : function_.local).push_back(std::move(variable));
    } else if (word == ".pragma") {
      const std::string text = in_.until(';');
      const std::size_t mask = text.find("used_bytes_mask ");
      if (mask != std::string::npos)
        used_bytes_ = std::strtoull(text.c_str() + mask + 16, nullptr, 0);
    } else if (word == ".branchtargets") {
      auto& table = function_.tables[last_label_];
      do table.push_back(label(in_.word()));
      while (in_.take(','));
      in_.need(';');
    } else if (word == ".loc" || word == ".file") {
      while (in_.at_ < in_.end_ && *in_.at_ != '\n') ++in_.at_;
    } else {
      in_.fail("directive " + word);
    }
  }

  /// Labels of inner scopes may repeat.
  std::string label(const std::string& name) {
    if (name.rfind("$L__", 0) == 0 || scopes_.size() <= 1) return name;
    return name + "@" + std::to_string(scopes_.back().id);
  }

  int register_of(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (auto known = scope->known.find(name); known != scope->known.end()) return known->second;
      if (auto own = scope->names.find(name); own != scope->names.end())
        return add(*scope, name, own->second);
      std::size_t digits = name.size();
      while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1])) != 0) --digits;
      if (digits == name.size()) continue;
      auto range = scope->ranges.find(name.substr(0, digits));
      if (range != scope->ranges.end() &&
          std::strtoul(name.c_str() + digits, nullptr, 10) < range->second.count)
        return add(*scope, name, range->second.bytes);
    }
    return -1;
  }
  int add(Scope& scope, const std::string& name, std::uint8_t bytes) {
    function_.registers.push_back({name, bytes});
    return scope.known[name] = static_cast<int>(function_.registers.size()) - 1;
  }

  Operand operand() {
    Operand result;
    if (in_.take('{')) {
      result.kind = Operand::kVec;
      do result.parts.push_back(operand());
      while (in_.take(','));
      in_.need('}');
      return result;
    }
    if (in_.take('[')) {
      result = operand();
      if (result.kind == Operand::kImm) {
        result.reg = -1;
      } else if (result.kind != Operand::kReg && result.kind != Operand::kSymbol) {
        in_.fail("address");
      }
      result.kind = Operand::kMem;
      in_.need(']');
      return result;
    }
    result.negated = in_.take('!');
    const bool minus = in_.take('-');
    in_.skip();
    const char* begin = in_.at_;
    std::string word = in_.word();
    if (word.empty()) in_.fail("operand");
    if (parse_number(word, result.imm)) {
      if (in_.at_ < in_.end_ && *in_.at_ == '.') in_.fail("decimal floating-point number");
      if (word.back() == 'U' || word.back() == 'u') word.pop_back();
      result.kind = Operand::kImm;
      if (minus) result.imm = -result.imm;
      return result;
    }
    if (word == "_") return result;
    result.reg = register_of(word);
    if (result.reg >= 0) {
      result.kind = Operand::kReg;
      if (in_.take('|')) {
        const std::string second = in_.word();
        result.reg2 = second == "_" ? -1 : register_of(second);
      }
    } else if (word[0] == '%' || word == "WARP_SZ") {
      in_.at_ = begin;
      result.kind = Operand::kSpecial;
      result.name = in_.dotted();
      return result;
    } else {
      result.kind = Operand::kSymbol;
      result.name = label(word);
      if (function_.labels.count(result.name) == 0 && result.name != word) symbols_in_scope_ = true;
      if (result.name != word) result.parts.push_back(plain_symbol(word));
    }
    if (in_.take('+')) {
      const bool negative = in_.take('-');
      std::uint64_t offset = 0;
      if (!parse_number(in_.word(), offset)) in_.fail("offset");
      result.imm = negative ? -offset : offset;
    } else if (in_.take('-')) {
      std::uint64_t offset = 0;
      if (!parse_number(in_.word(), offset)) in_.fail("offset");
      result.imm = -offset;
    }
    return result;
  }
  static Operand plain_symbol(const std::string& word) {
    Operand plain;
    plain.kind = Operand::kSymbol;
    plain.name = word;
    return plain;
  }

  Function& function_;
  Reader in_;
  std::vector<Scope> scopes_;
  unsigned scope_count_ = 0;
  std::uint64_t used_bytes_ = ~std::uint64_t{0};
  std::string last_label_;
  bool symbols_in_scope_ = false;
};

}  // namespace

Module::Module(std::string text) : text_(std::move(text)) {
  Reader in(text_.data(), text_.data() + text_.size(), 1);
  while (!in.done()) {
    const char* begin = in.at_;
    const unsigned line = in.line_;
    std::string word = in.dotted();
    if (word == ".version" || word == ".address_size") {
      in.dotted();
    } else if (word == ".target") {
      std::string name = in.dotted();
      target = static_cast<unsigned>(std::atoi(name.c_str() + name.find_first_of("0123456789")));
      while (in.take(',')) in.dotted();
    } else if (word == ".file" || word == ".section") {
      if (word == ".section") {
        in.until('{');
        in.until('}');
      } else {
        while (in.at_ < in.end_ && *in.at_ != '\n') ++in.at_;
      }
    } else if (word == ".pragma") {
      in.until(';');
    } else {
      bool is_extern = false;
      while (word == ".visible" || word == ".extern" || word == ".weak" || word == ".common") {
        is_extern = is_extern || word == ".extern";
        word = in.dotted();
      }
      if (word == ".global" || word == ".const" || word == ".shared") {
        Variable variable = parse_variable(in);
        variable.is_extern = is_extern;
        in.need(';');
        (word == ".shared" ? shared : globals).push_back(std::move(variable));
      } else if (word == ".entry") {
        std::string name = in.word();
        in.until('{');
        for (int depth = 1; depth > 0;) {
          const char c = in.peek();
          if (c == '\0') in.fail("the module ends within a function");
          depth += c == '{' ? 1 : c == '}' ? -1 : 0;
          ++in.at_;
          while (depth > 0 && in.at_ < in.end_ && *in.at_ != '{' && *in.at_ != '}' && *in.at_ != '/')
            in.line_ += *in.at_++ == '\n';
        }
        entries_[name] = {static_cast<std::size_t>(begin - text_.data()),
                          static_cast<std::size_t>(in.at_ - text_.data()), line};
      } else if (word == ".func") {
        // Declarations may stand there; who calls one is told when the call is decoded.
        while (in.peek() != ';' && in.peek() != '{') {
          if (in.at_ >= in.end_) in.fail("function");
          ++in.at_;
        }
        if (in.take(';')) continue;
        in.take('{');
        for (int depth = 1; depth > 0; ++in.at_)
          depth += in.peek() == '{' ? 1 : in.peek() == '}' ? -1 : 0;
      } else {
        in.fail("directive " + word);
      }
    }
  }
}

Function Module::function(const std::string& name) const {
  const Extent& extent = entries_.at(name);
  Function function;
  function.name = name;
  FunctionReader(function, Reader(text_.data() + extent.begin, text_.data() + extent.end,
                                  extent.line))
      .read();
  return function;
}

std::vector<std::string> Module::names() const {
  std::vector<std::string> names;
  for (const auto& [name, extent] : entries_) names.push_back(name);
  return names;
}

}  // namespace ptx
