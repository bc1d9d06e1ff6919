// Bitwise comparison of a call's results on the host and on the device. Failures name the first
// difference.
#pragma once

#include <tersor/codec.h>

#include <vector>

namespace tersor::test {

void expect_same_frame(ConstByteSpan host, ConstByteSpan device);

/// All NaNs count as equal.
void expect_same_values(const std::vector<float>& host, const std::vector<float>& device,
                        const char* what);

void expect_same_words(const StateWords& host, const StateWords& device);

}  // namespace tersor::test
