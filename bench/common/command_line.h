// Commands and their options, parsed by CLI11. Only command_line.cc includes CLI11, because CLI11
// compiles slowly.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tersor::bench {

/// Returns the text to use for an option's text, or throws with an explanation.
using Check = std::function<std::string(const std::string& text)>;

/// Accepts these names. Errors list the names.
Check one_of(const std::vector<std::string>& names);

/// Accepts numbers with the suffixes K, M, G (powers of 1024), e.g. 64K, and applies `check`.
Check size_suffix(const Check& check);

/// Accept numbers of a range. Errors name the range.
Check above_zero();
Check from_to(double least, double most);

Check existing_file();

/// An option, for further settings.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument& transform(const Check& check);       ///< replaces the text by the result of `check`
  Argument& type_name(const std::string& name);  ///< name in the help
  Argument& takes(const std::string& name);      ///< the help also shows the default value
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

  /// Adds a command of this program. One command is then required.
  Command add_subcommand(const std::string& name, const std::string& description);

  /// Stores the arguments of `names` in `value`: one value, or all values for a vector.
  template <typename Value>
  Argument add_option(const std::string& names, Value& value, const std::string& description);
  /// Passes the arguments of `names` to `take`.
  Argument add_option_function(const std::string& names,
                               std::function<void(const std::vector<std::string>&)> take,
                               const std::string& description);
  Argument add_flag(const std::string& name, bool& value, const std::string& description);

  /// Sets the command's action, called after parsing all options.
  void callback(std::function<void()> run);

 private:
  CLI::App* app_;
};

struct Program {
  std::string name, description;
  std::function<void(Command command)> add;  ///< adds commands or options, and the callback
};

/// Parses the arguments and calls the callback. Returns the exit code: 0, 1 for a failed run, or 2
/// for invalid arguments (the message lists the valid arguments). Each failing rank prints the
/// reason.
int run_command(const Program& program, int argc, const char* const* argv);

}  // namespace tersor::bench
