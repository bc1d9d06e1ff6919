// See inlining.h.
#include "tests/ptx_device/ptx/inlining.h"

#include <algorithm>
#include <unordered_map>

namespace ptx {
namespace {

/// call (result), name, (param, …);
struct Call {
  std::vector<Operand> results, params;
  Operand target;
};

std::string plain_name(const Operand& operand) {
  return operand.parts.empty() ? operand.name : operand.parts[0].name;
}

Call call_of(const Statement& statement) {
  Call call;
  auto next = statement.operands.begin();
  const auto end = statement.operands.end();
  if (next != end && next->kind == Operand::kVec) call.results = next++->parts;
  if (next != end) call.target = *next++;
  if (next != end && next->kind == Operand::kVec) call.params = next->parts;
  return call;
}

/// Functions implemented by the driver and known to the decoder.
bool is_of_the_device(const std::string& name) {
  return name == "vprintf" || name == "__assertfail";
}

/// A function during inlining: the kernel or a callee.
struct Frame {
  const Function& function;
  const Frame* caller;
  std::string suffix;  // for declared names
  std::string end;     // the label after the function; empty for the kernel
  int first_register;
  std::unordered_map<std::string, std::string> names;  // declared name -> name in the kernel
};

class Inliner {
 public:
  Inliner(const Module& module, Function& result) : module_(module), result_(result) {}

  void add(Frame& frame) {
    declare(frame);
    const Function& function = frame.function;
    std::unordered_multimap<unsigned, std::string> labels;
    for (const auto& [name, index] : function.labels) labels.emplace(index, frame.names.at(name));
    for (unsigned i = 0; i <= function.statements.size(); ++i) {
      const auto [first, last] = labels.equal_range(i);
      for (auto label = first; label != last; ++label) set_label(label->second);
      if (i < function.statements.size()) add(frame, function.statements[i]);
    }
    if (!frame.end.empty()) set_label(frame.end);
  }

 private:
  void set_label(const std::string& name) {
    result_.labels[name] = static_cast<unsigned>(result_.statements.size());
  }

  void declare(Frame& frame) {
    const Function& function = frame.function;
    frame.first_register = static_cast<int>(result_.registers.size());
    result_.registers.insert(result_.registers.end(), function.registers.begin(),
                             function.registers.end());
    declare(frame, function.shared, result_.shared);
    declare(frame, function.local, result_.local);
    for (const auto& [name, index] : function.labels) frame.names[name] = name + frame.suffix;
    for (const auto& [name, labels] : function.tables) {
      auto& table = result_.tables[name + frame.suffix];
      for (const std::string& label : labels) table.push_back(frame.names.at(label));
    }
  }
  void declare(Frame& frame, const std::vector<Variable>& from, std::vector<Variable>& to) {
    for (Variable variable : from) {
      frame.names[variable.name] = variable.name + frame.suffix;
      variable.name += frame.suffix;
      to.push_back(std::move(variable));
    }
  }

  void add(Frame& frame, Statement statement) {
    if (statement.op[0] == "call") return add_call(frame, std::move(statement));
    const bool is_return = statement.op[0] == "ret" && !frame.end.empty();
    rename(frame, statement);
    if (is_return) jump(statement, frame.end);
    result_.statements.push_back(std::move(statement));
  }

  static void jump(Statement& statement, const std::string& label) {
    statement.op = {"bra"};
    statement.operands.assign(1, {});
    statement.operands[0].kind = Operand::kSymbol;
    statement.operands[0].name = label;
  }

  void rename(const Frame& frame, Statement& statement) const {
    if (statement.guard >= 0) statement.guard += frame.first_register;
    bool is_local = !frame.end.empty();  // a function's parameters are variables of its caller
    for (Operand& operand : statement.operands) {
      rename(frame, operand);
      is_local = is_local || is_local_variable(operand);
    }
    if (!is_local) return;
    for (std::string& part : statement.op)
      if (part.rfind("param", 0) == 0) part = "local";
  }
  bool is_local_variable(const Operand& operand) const {
    return operand.kind == Operand::kMem &&
           std::any_of(result_.local.begin(), result_.local.end(),
                       [&](const Variable& variable) { return variable.name == operand.name; });
  }

  void rename(const Frame& frame, Operand& operand) const {
    if (operand.reg >= 0) operand.reg += frame.first_register;
    if (operand.reg2 >= 0) operand.reg2 += frame.first_register;
    if (operand.kind == Operand::kVec) {
      for (Operand& part : operand.parts) rename(frame, part);
    } else if (operand.kind == Operand::kSymbol || operand.kind == Operand::kMem) {
      operand.name = resolve(frame, operand);
      operand.parts.clear();
    }
  }
  /// A name in the scope, the function, or the module.
  static std::string resolve(const Frame& frame, const Operand& operand) {
    auto found = frame.names.find(operand.name);
    if (found == frame.names.end()) found = frame.names.find(plain_name(operand));
    return found == frame.names.end() ? plain_name(operand) : found->second;
  }

  void add_call(Frame& frame, Statement statement) {
    const Call call = call_of(statement);
    if (call.target.kind != Operand::kSymbol) refuse(statement, "an indirect call");
    const std::string name = plain_name(call.target);
    if (is_of_the_device(name)) return add_device_call(frame, std::move(statement), call);
    if (!module_.calls(name)) refuse(statement, "calls a function that the module does not hold");
    for (const Frame* at = &frame; at != nullptr; at = at->caller)
      if (at->function.name == name) refuse(statement, "a function that calls itself");
    const Function function = module_.callee(name);
    std::string suffix = "#";
    suffix += std::to_string(++calls_);
    if (statement.guard >= 0) jump_past(frame, statement, "end" + suffix);
    Frame callee{function, &frame, suffix, "end" + suffix, 0, {}};
    bind(frame, statement, call.results, function.results, callee);
    bind(frame, statement, call.params, function.params, callee);
    add(callee);
  }

  /// Threads excluded by the guard skip the call.
  void jump_past(const Frame& frame, Statement statement, const std::string& end) {
    statement.guard += frame.first_register;
    statement.guard_negated = !statement.guard_negated;
    jump(statement, end);
    result_.statements.push_back(std::move(statement));
  }

  void bind(const Frame& frame, const Statement& statement, const std::vector<Operand>& actual,
            const std::vector<Variable>& formal, Frame& callee) const {
    if (actual.size() != formal.size()) refuse(statement, "another number of parameters");
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (actual[i].kind != Operand::kSymbol) refuse(statement, "a parameter that is no variable");
      callee.names[formal[i].name] = resolve(frame, actual[i]);
    }
  }

  /// call.vprintf: results first, then parameters.
  void add_device_call(const Frame& frame, Statement statement, const Call& call) {
    statement.op = {"call", plain_name(call.target)};
    statement.operands = call.results;
    statement.operands.insert(statement.operands.end(), call.params.begin(), call.params.end());
    rename(frame, statement);
    result_.statements.push_back(std::move(statement));
  }

  [[noreturn]] static void refuse(const Statement& statement, const std::string& what) {
    throw Unsupported(what + ": \"" + statement.text + "\", line " +
                      std::to_string(statement.line) + " of the PTX");
  }

  const Module& module_;
  Function& result_;
  unsigned calls_ = 0;
};

}  // namespace

Function inline_calls(const Module& module, const Function& kernel) {
  Function result = kernel;
  result.registers.clear();
  result.shared.clear();
  result.local.clear();
  result.statements.clear();
  result.labels.clear();
  result.tables.clear();
  Frame frame{kernel, nullptr, "", "", 0, {}};
  Inliner(module, result).add(frame);
  return result;
}

}  // namespace ptx
