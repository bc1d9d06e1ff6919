// Decodes a kernel. Each opcode has a handler. The handler selects a function by the statement's
// types and assigns the operands' offsets. Unknown statements are refused, with their text.
#pragma once

#include "tests/ptx_device/decode/types.h"
#include "tests/ptx_device/machine/kernel.h"
#include "tests/ptx_device/ptx/module.h"

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ptx {

/// The address of a variable.
struct Place {
  Space space;
  std::uint64_t value;
};

class Decoder {
 public:
  Decoder(const Function& function, const Module& module, const Variables& variables)
      : function_(function), module_(module), variables_(variables), kernel_(new Kernel) {}

  std::unique_ptr<Kernel> run();

  // ---- The current statement ----
  [[noreturn]] void refuse(const std::string& why = "unknown instruction") const;
  void refuse_parts(std::initializer_list<const char*> parts) const;
  const std::vector<std::string>& op() const { return statement_->op; }
  bool has(const char* part) const;
  /// The last type in the opcode, or empty.
  const std::string& type() const { return type_; }
  unsigned bytes() const { return bytes_of_type(type_); }
  /// The index of the word contained in the opcode, or the number of words if none is contained.
  std::uint8_t which(std::initializer_list<const char*> words) const;

  // ---- Its operands ----
  std::size_t operands() const { return statement_->operands.size(); }
  const Operand& operand(std::size_t i) const;
  unsigned register_bytes(const Operand& operand) const;
  /// The offset of an input of `bytes` bytes; 0 for a predicate.
  std::uint32_t in(std::size_t i, unsigned bytes) { return in(operand(i), bytes); }
  std::uint32_t in(const Operand& operand, unsigned bytes);
  /// The offset of an output of `bytes` bytes; kNoPlace if unused.
  std::uint32_t out(std::size_t i, unsigned bytes) const;
  /// The predicate of d|p.
  void second_out(Instruction& ins) const;
  void address(Instruction& ins, const Operand& at);
  Space space_of(const Operand& address) const;
  const Place& symbol(const Operand& operand) const;
  /// Returns true if all threads read the parameters at `imm`.
  bool fix_param(Instruction& ins, const Operand& address) const;
  std::uint32_t label(const std::string& name) const;
  /// The index of a table of labels.
  std::size_t table(const std::string& name);

  // ---- Common steps of handlers ----
  /// Returns the function, or refuses the statement if null.
  WarpFunction known(WarpFunction function) const;
  /// Decodes `inputs` operands with the size of the result.
  void same_bytes(Instruction& ins, WarpFunction function, std::size_t inputs);

 private:
  void lay_out();
  void lay_out_params();
  void lay_out_shared();
  void lay_out_local();
  void place();
  void finish();
  Instruction decode_one(const Statement& statement);
  std::uint32_t add_bytes(std::size_t bytes);
  std::uint32_t constant(std::uint64_t bits, unsigned bytes);
  void fill_image();
  std::uint32_t special(const std::string& name, unsigned bytes);

  const Function& function_;
  const Module& module_;
  const Variables& variables_;
  std::unique_ptr<Kernel> kernel_;
  const Statement* statement_ = nullptr;
  std::string type_;
  unsigned accesses_ = 0;
  std::vector<std::uint32_t> offsets_;  // of registers
  std::map<std::pair<std::uint64_t, unsigned>, std::uint32_t> constants_;
  std::map<std::pair<std::string, unsigned>, std::uint32_t> specials_;
  std::unordered_map<std::string, Place> symbols_;
};

using Handler = void (*)(Decoder&, Instruction&);
/// Handlers by opcode or, if handlers depend on the type, by opcode and kind of type: "add",
/// "add.integer".
using Handlers = std::unordered_map<std::string, Handler>;

void add_integers(Handlers& handlers);
void add_floats(Handlers& handlers);
void add_halves(Handlers& handlers);
void add_bits(Handlers& handlers);
void add_comparisons(Handlers& handlers);
void add_predicates(Handlers& handlers);
void add_conversions(Handlers& handlers);
void add_moves(Handlers& handlers);
void add_accesses(Handlers& handlers);
void add_async_copies(Handlers& handlers);
void add_atomics(Handlers& handlers);
void add_warps(Handlers& handlers);
void add_control(Handlers& handlers);
void add_device_calls(Handlers& handlers);

/// True if a statement writes its first operand. Needed for the live ranges of registers.
bool writes_first(const Statement& statement);

/// Assigns offsets to registers. Registers never live at the same time share an offset. Increases
/// `bytes` by the required memory.
std::vector<std::uint32_t> place_registers(const Function& function,
                                           const std::vector<std::vector<int>>& reads,
                                           const std::vector<std::vector<int>>& writes,
                                           std::size_t& bytes);

}  // namespace ptx
