// See decoder.h: the frame of a kernel, and the dispatch of statements to handlers.
#include "tests/ptx_device/decode/decoder.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>

namespace ptx {
namespace {

constexpr std::size_t kMostParamBytes = 32764;

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = status == 0 ? text : name;
  std::free(text);
  return result;
}

std::size_t aligned(std::size_t offset, std::size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

void registers_in(const Operand& operand, std::vector<int>& list) {
  if (operand.reg >= 0) list.push_back(operand.reg);
  if (operand.reg2 >= 0) list.push_back(operand.reg2);
  for (const Operand& part : operand.parts) registers_in(part, list);
}

const Handlers& handlers() {
  static const Handlers known = [] {
    Handlers made;
    for (auto* add : {add_integers, add_floats, add_halves, add_bits, add_comparisons,
                      add_predicates, add_conversions, add_moves, add_accesses, add_async_copies,
                      add_atomics, add_warps, add_control, add_device_calls})
      add(made);
    return made;
  }();
  return known;
}

const char* name_of(Family family) {
  switch (family) {
    case Family::kPredicate:
      return ".predicate";
    case Family::kInteger:
      return ".integer";
    case Family::kHalf:
      return ".half";
    case Family::kFloat:
      return ".float";
    case Family::kNone:
      break;
  }
  return "";
}

Handler handler_of(const std::string& opcode, Family family) {
  auto found = handlers().find(opcode + name_of(family));
  if (found == handlers().end()) found = handlers().find(opcode);
  return found == handlers().end() ? nullptr : found->second;
}

bool ends_a_run(Kind kind) {
  return kind == Kind::kBranch || kind == Kind::kTable || kind == Kind::kExit;
}

}  // namespace

std::unique_ptr<Kernel> Decoder::run() {
  lay_out();
  place();
  for (const Statement& statement : function_.statements) {
    kernel_->code.push_back(decode_one(statement));
    kernel_->text.push_back(statement.text);
  }
  finish();
  return std::move(kernel_);
}

void Decoder::lay_out() {
  kernel_->name = demangled(function_.name);
  kernel_->max_threads = function_.max_threads;
  kernel_->min_blocks = function_.min_blocks;
  std::copy(function_.required, function_.required + 3, kernel_->required);
  lay_out_params();
  lay_out_shared();
  lay_out_local();
  for (const auto& [name, address] : variables_)
    symbols_.try_emplace(name, Place{Space::kGlobal, address});
}

void Decoder::lay_out_params() {
  for (const Variable& param : function_.params) {
    const std::size_t offset = aligned(kernel_->param_bytes, param.align);
    kernel_->params.push_back({offset, param.bytes});
    symbols_[param.name] = {Space::kParam, offset};
    kernel_->param_bytes = offset + param.bytes;
  }
  if (kernel_->param_bytes > kMostParamBytes)
    throw Unsupported("more than " + std::to_string(kMostParamBytes) + " bytes of parameters");
}

/// Dynamic shared memory comes after all other variables.
void Decoder::lay_out_shared() {
  std::vector<const Variable*> dynamic;
  for (const std::vector<Variable>* list : {&module_.shared, &function_.shared})
    for (const Variable& variable : *list) {
      if (variable.is_extern) {
        dynamic.push_back(&variable);
        continue;
      }
      const std::size_t offset = aligned(kernel_->shared_bytes, variable.align);
      symbols_[variable.name] = {Space::kShared, offset};
      kernel_->shared_bytes = offset + variable.bytes;
    }
  for (const Variable* variable : dynamic) {
    kernel_->shared_bytes = aligned(kernel_->shared_bytes, variable->align);
    symbols_[variable->name] = {Space::kShared, kernel_->shared_bytes};
  }
}

void Decoder::lay_out_local() {
  for (const Variable& variable : function_.local) {
    const std::size_t offset = aligned(kernel_->local_bytes, variable.align);
    symbols_[variable.name] = {Space::kLocal, offset};
    kernel_->local_bytes = offset + variable.bytes;
  }
  kernel_->local_bytes = aligned(kernel_->local_bytes, 16);
}

void Decoder::place() {
  std::vector<std::vector<int>> reads(function_.statements.size()), writes(reads);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const Statement& statement = function_.statements[i];
    const bool first = writes_first(statement);
    for (std::size_t k = 0; k < statement.operands.size(); ++k)
      registers_in(statement.operands[k], k == 0 && first ? writes[i] : reads[i]);
    if (statement.guard < 0) continue;
    reads[i].push_back(statement.guard);
    // A guarded statement preserves lanes without a write.
    reads[i].insert(reads[i].end(), writes[i].begin(), writes[i].end());
  }
  offsets_ = place_registers(function_, reads, writes, kernel_->register_bytes);
  kernel_->live_bytes = static_cast<unsigned>(kernel_->register_bytes / kLanes);
}

Instruction Decoder::decode_one(const Statement& statement) {
  statement_ = &statement;
  const auto type = std::find_if(op().rbegin(), op().rend(), is_type);
  type_ = type == op().rend() ? "" : *type;
  Instruction ins;
  ins.line = statement.line;
  ins.used = statement.used_bytes;
  if (statement.guard >= 0) {
    ins.guard = static_cast<std::int32_t>(offsets_[statement.guard]);
    ins.guard_negated = statement.guard_negated;
  }
  const Handler handler = handler_of(op()[0], family_of(type_));
  if (handler == nullptr) refuse();
  handler(*this, ins);
  return ins;
}

void Decoder::finish() {
  Instruction end;  // the end of the code is a return
  end.kind = Kind::kExit;
  kernel_->code.push_back(end);
  kernel_->text.push_back("the function's end");
  for (const auto& [name, index] : function_.labels) kernel_->code[index].leader = true;
  for (std::size_t i = 0; i + 1 < kernel_->code.size(); ++i)
    if (ends_a_run(kernel_->code[i].kind)) kernel_->code[i + 1].leader = true;
  kernel_->register_bytes = aligned(kernel_->register_bytes, 64);
  fill_image();
  kernel_->registers = static_cast<unsigned>(function_.registers.size());
}

std::unique_ptr<Kernel> decode(const Function& function, const Module& module,
                               const Variables& variables) {
  return Decoder(function, module, variables).run();
}

}  // namespace ptx
