// Runs the Python program that draws the report.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tersor::bench {

/// How to run it.
struct ReportProgram {
  std::string python;  ///< empty: the first of python3 and /usr/bin/python3 that has matplotlib
  std::filesystem::path script;  ///< empty: the installed one, else the source tree's
};

/// Runs it and waits. Throws Error where it cannot be started or fails; it has said why itself.
void run_report(const ReportProgram& program, const std::vector<std::string>& arguments);

/// Throws Error where a report could not be written to `folder`: before a training, not after.
void check_report_folder(const ReportProgram& program, const std::filesystem::path& folder);

}  // namespace tersor::bench
