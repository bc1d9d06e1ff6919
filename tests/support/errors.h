// The texts of exceptions.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace tersor::test {

/// The text of the `Error` thrown by `call`, or "" if `call` throws nothing. Exceptions of other
/// types propagate.
template <typename Error, typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Succeeds if a text contains `part`.
inline ::testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << '"' << text << "\" does not say \"" << part << '"';
}

/// Expects an `Error` from `call` with `part` in the text.
template <typename Error, typename Call>
void expect_error(const Call& call, const std::string& part) {
  EXPECT_TRUE(says(error_of<Error>(call), part));
}

}  // namespace tersor::test
