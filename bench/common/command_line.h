// Options and errors of command lines, parsed by CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace tersor::bench {

/// Replaces an option's text by the result of `check`, or reports the exception of `check`.
CLI::Validator checked(const std::function<std::string(const std::string& text)>& check);

/// Accepts these names. Errors list the names.
CLI::Validator one_of(const std::vector<std::string>& names);

/// Accept numbers of a range. Errors name the range.
CLI::Validator above_zero();
CLI::Validator within(double min, double max);

/// Accepts numbers with the suffixes K, M, G (powers of 1024), e.g. 64K, and applies `check`.
CLI::Validator size_suffix(const CLI::Validator& check = above_zero());

/// Adds an option. The help shows the default value and `type`.
template <typename Value>
CLI::Option* add(CLI::App& command, const std::string& names, Value& value, const std::string& help,
                 const std::string& type, const CLI::Validator& check = {}) {
  return command.add_option(names, value, help)
      ->transform(check)
      ->type_name(type)
      ->capture_default_str();
}

/// Parses the arguments and calls the callback. Returns the exit code: 0, 1 for a failed run, or 2
/// for invalid arguments (the message lists the valid arguments). Each failing rank prints the
/// reason.
int run_command(CLI::App& program, int argc, const char* const* argv);

}  // namespace tersor::bench
