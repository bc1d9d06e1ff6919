// Commands and their options. CLI11 reads them, which takes long to compile, so that it stands
// behind command_line.cc alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tersor::bench {

/// What becomes of an option's text: returns the text to use, or throws, saying what is wrong with
/// it.
using Check = std::function<std::string(const std::string& text)>;

/// Accepts these names; an error lists them.
Check one_of(const std::vector<std::string>& names);

/// Numbers that take K, M, G (1024), e.g. 64K, and pass `check` then.
Check size_suffix(const Check& check);

/// Accepts numbers of a range, which an error names.
Check above_zero();
Check from_to(double least, double most);

Check existing_file();

/// One option, to be described further.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument& transform(const Check& check);       ///< the text becomes what `check` returns
  Argument& type_name(const std::string& name);  ///< the help calls it so
  Argument& takes(const std::string& name);      ///< the help also shows the value that it has
  Argument& takes(const std::string& name, const Check& check) {
    return takes(name).transform(check);
  }
  Argument& delimiter(char between_values);
  Argument& take_last();
  Argument& required();
  Argument& needs(const Argument& other);
  Argument& excludes(const std::string& other);

 private:
  CLI::Option* option_;
};

class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_subcommand(const std::string& name, const std::string& description);

  /// Puts what stands behind one of `names` into `value`; of a vector as many as there are.
  template <typename Value>
  Argument add_option(const std::string& names, Value& value, const std::string& description);
  /// Hands what stands behind one of `names` to `take`.
  Argument add_option_function(const std::string& names,
                               std::function<void(const std::vector<std::string>&)> take,
                               const std::string& description);
  Argument add_flag(const std::string& name, bool& value, const std::string& description);

  /// What the command does, once all its options are known.
  void callback(std::function<void()> run);

 private:
  CLI::App* app_;
};

/// Runs the command of tersor-bench that the arguments name. Returns the exit code: 0, 1 where a
/// run failed, 2 where the arguments are wrong (the message lists the right ones).
int run_program(int argc, const char* const* argv);

}  // namespace tersor::bench
