// Parses the text of a function into statements.
#include "tests/ptx_device/ptx/reader.h"
#include "tests/ptx_device/ptx/scopes.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace ptx {
namespace {

constexpr std::uint64_t kAllBytes = ~std::uint64_t{0};

/// The parts of an opcode: add.rn.f32
std::vector<std::string> parts_of(const std::string& opcode) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= opcode.size();) {
    const std::size_t dot = std::min(opcode.find('.', begin), opcode.size());
    parts.push_back(opcode.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return parts;
}

class FunctionParser {
 public:
  FunctionParser(Function& function, Reader in)
      : function_(function), in_(in), scopes_(function.registers) {}

  void parse() {
    parse_head();
    in_.need('{');
    scopes_.open();
    while (!scopes_.closed()) {
      if (in_.done()) in_.fail("the function does not end");
      parse_item();
    }
  }

 private:
  void parse_head() {
    while (in_.peek() == '.') in_.dotted();  // .visible .entry
    parse_params(function_.results);
    in_.word();  // the name
    parse_params(function_.params);
    while (in_.peek() == '.') parse_limit(in_.dotted());
  }

  void parse_params(std::vector<Variable>& list) {
    if (!in_.take('(')) return;
    while (in_.peek() == '.') {
      if (in_.dotted() != ".param") in_.fail("a parameter in a register");
      list.push_back(parse_variable(in_));
      if (!in_.take(',')) break;
    }
    in_.need(')');
  }

  /// .maxntid 256, 1, 1
  void parse_limit(const std::string& word) {
    if (word == ".pragma") {
      in_.until(';');
      return;
    }
    unsigned values[3] = {1, 1, 1};
    for (unsigned& value : values) {
      if (std::isdigit(static_cast<unsigned char>(in_.peek())) == 0) break;
      value = static_cast<unsigned>(in_.number());
      if (!in_.take(',')) break;
    }
    if (word == ".maxntid") function_.max_threads = values[0] * values[1] * values[2];
    if (word == ".minnctapersm") function_.min_blocks = values[0];
    if (word == ".reqntid") std::copy(values, values + 3, function_.required);
  }

  void parse_item() {
    if (in_.take('{')) return scopes_.open();
    if (in_.take('}')) return scopes_.close();
    if (in_.take(';')) return;
    if (in_.peek() == '.') return parse_directive(in_.dotted());
    if (!parse_label()) parse_statement();
  }

  /// Reads up to the colon. "L1::no_allocate" is no label.
  bool parse_label() {
    const char* begin = in_.at();
    const std::string word = in_.dotted();
    const std::size_t colon = word.find(':');
    if (colon == std::string::npos || word.compare(colon, 2, "::") == 0) {
      in_.go_to(begin);
      return false;
    }
    in_.go_to(begin + colon + 1);
    last_label_ = scopes_.unique(word.substr(0, colon));
    function_.labels[last_label_] = static_cast<unsigned>(function_.statements.size());
    return true;
  }

  void parse_statement() {
    Statement statement;
    const char* begin = in_.at();
    statement.line = in_.line();
    if (in_.take('@')) {
      statement.guard_negated = in_.take('!');
      statement.guard = scopes_.register_of(in_.word());
      if (statement.guard < 0) in_.fail("a guard that is no predicate");
    }
    statement.op = parts_of(in_.dotted());
    if (in_.peek() != ';') {
      do statement.operands.push_back(parse_operand());
      while (in_.take(','));
    }
    statement.text.assign(begin, in_.at());
    std::replace(statement.text.begin(), statement.text.end(), '\n', ' ');
    in_.need(';');
    statement.used_bytes = used_bytes_;
    used_bytes_ = kAllBytes;
    function_.statements.push_back(std::move(statement));
  }

  void parse_directive(const std::string& word) {
    if (word == ".reg") return parse_registers();
    if (word == ".shared") return parse_variable_into(function_.shared);
    if (word == ".local" || word == ".param") return parse_variable_into(function_.local);
    if (word == ".callprototype") return void(in_.until(';'));
    if (word == ".pragma") return parse_pragma();
    if (word == ".branchtargets") return parse_table();
    if (word == ".loc" || word == ".file") return in_.skip_line();
    in_.fail("directive " + word);
  }

  void parse_registers() {
    const auto bytes = static_cast<std::uint8_t>(type_bytes(in_.dotted().substr(1)));
    do {
      const std::string name = in_.word();
      if (in_.take('<')) {
        scopes_.add_registers(name, static_cast<unsigned>(in_.number()), bytes);
        in_.need('>');
      } else {
        scopes_.add_register(name, bytes);
      }
    } while (in_.take(','));
    in_.need(';');
  }

  void parse_variable_into(std::vector<Variable>& list) {
    list.push_back(parse_variable(in_));
    list.back().name = scopes_.unique(list.back().name);
    in_.need(';');
  }

  void parse_pragma() {
    const std::string text = in_.until(';'), wanted = "used_bytes_mask ";
    const std::size_t mask = text.find(wanted);
    if (mask != std::string::npos)
      used_bytes_ = std::strtoull(text.c_str() + mask + wanted.size(), nullptr, 0);
  }

  void parse_table() {
    auto& table = function_.tables[last_label_];
    do table.push_back(scopes_.unique(in_.word()));
    while (in_.take(','));
    in_.need(';');
  }

  Operand parse_operand() {
    if (in_.take('{')) return parse_vector();
    if (in_.take('(')) return parse_list();
    if (in_.take('[')) return parse_address();
    Operand result;
    result.negated = in_.take('!');
    const bool minus = in_.take('-');
    in_.peek();  // skips spaces
    const char* begin = in_.at();
    const std::string word = in_.word();
    if (word.empty()) in_.fail("operand");
    if (word == "_") return parse_second(result);
    if (parse_number(word, result.imm)) {
      if (in_.peek() == '.') in_.fail("decimal floating-point number");
      result.kind = Operand::kImm;
      if (minus) result.imm = -result.imm;
      return result;
    }
    if (parse_register(word, result)) return parse_offset(result);
    if (word[0] == '%' || word == "WARP_SZ") {
      in_.go_to(begin);
      result.kind = Operand::kSpecial;
      result.name = in_.dotted();
      return result;
    }
    name(word, result);
    return parse_offset(result);
  }

  Operand parse_vector() {
    Operand result;
    result.kind = Operand::kVec;
    do result.parts.push_back(parse_operand());
    while (in_.take(','));
    in_.need('}');
    return result;
  }

  Operand parse_address() {
    Operand result = parse_operand();
    if (result.kind != Operand::kImm && result.kind != Operand::kReg &&
        result.kind != Operand::kSymbol)
      in_.fail("address");
    result.kind = Operand::kMem;
    in_.need(']');
    return result;
  }

  /// The parameter list of a call: (param0, param1)
  Operand parse_list() {
    Operand result;
    result.kind = Operand::kVec;
    if (in_.take(')')) return result;
    do result.parts.push_back(parse_operand());
    while (in_.take(','));
    in_.need(')');
    return result;
  }

  /// %r1, or a pair %p1|%p2.
  bool parse_register(const std::string& word, Operand& result) {
    result.reg = scopes_.register_of(word);
    if (result.reg < 0) return false;
    result.kind = Operand::kReg;
    result = parse_second(result);
    return true;
  }
  Operand parse_second(Operand result) {
    if (in_.take('|')) result.reg2 = scopes_.register_of(in_.word());
    return result;
  }

  /// A label or variable, found in this scope, the function or the module.
  void name(const std::string& word, Operand& result) {
    result.kind = Operand::kSymbol;
    result.name = scopes_.unique(word);
    if (result.name == word) return;
    Operand outer;
    outer.kind = Operand::kSymbol;
    outer.name = word;
    result.parts.push_back(std::move(outer));
  }

  Operand parse_offset(Operand result) {
    bool negative = false;
    if (in_.take('+'))
      negative = in_.take('-');
    else if (in_.take('-'))
      negative = true;
    else
      return result;
    const std::uint64_t offset = in_.number();
    result.imm = negative ? -offset : offset;
    return result;
  }

  Function& function_;
  Reader in_;
  Scopes scopes_;
  std::uint64_t used_bytes_ = kAllBytes;
  std::string last_label_;
};

}  // namespace

Function parse_function(const std::string& name, Reader in) {
  Function function;
  function.name = name;
  FunctionParser(function, in).parse();
  return function;
}

}  // namespace ptx
