// Runs the Python program that draws the report.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tersor::bench {

/// The interpreter and the script.
struct ReportProgram {
  std::string python;  ///< empty: python3 or /usr/bin/python3, the first with matplotlib
  /// empty: the installed script or, if missing, the script of the source tree
  std::filesystem::path script;
};

/// Runs the program and waits. Throws Error if the program cannot be started or fails. A failing
/// program prints the reason.
void run_report(const ReportProgram& program, const std::vector<std::string>& arguments);

/// Throws Error if a report could not be written to `folder`. Call before a training.
void check_report_folder(const ReportProgram& program, const std::filesystem::path& folder);

}  // namespace tersor::bench
