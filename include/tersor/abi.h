// Makes a program fail to link if the program and libtersor disagree about the layout of
// std::string and std::vector. The undefined symbol names the remedy. <tersor/error.h> includes
// this file.
#pragma once

#include <version>  // defines the macros of libstdc++

#if defined(__GLIBCXX__) || defined(_GLIBCXX_RELEASE)
#ifdef _GLIBCXX_DEBUG
#define TERSOR_ABI_DEBUG compile_libtersor_with_GLIBCXX_DEBUG_too
#else
#define TERSOR_ABI_DEBUG compile_libtersor_without_GLIBCXX_DEBUG_too
#endif
#if _GLIBCXX_USE_CXX11_ABI
#define TERSOR_ABI_STRING compile_libtersor_with_GLIBCXX_USE_CXX11_ABI_1_too
#else
#define TERSOR_ABI_STRING compile_libtersor_with_GLIBCXX_USE_CXX11_ABI_0_too
#endif

namespace tersor {

extern const char TERSOR_ABI_DEBUG, TERSOR_ABI_STRING;

namespace abi {
[[gnu::used]] inline const char* const debug = &TERSOR_ABI_DEBUG;
[[gnu::used]] inline const char* const string = &TERSOR_ABI_STRING;
}  // namespace abi

}  // namespace tersor
#endif
