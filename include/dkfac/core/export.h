#pragma once

#if __cplusplus <= 201703L
#error "dkfac needs C++20 (-std=c++20); only dkfac/c/dkfac.h is for C99 and older C++"
#include "dkfac_needs_cxx20"  // There is none: compilers end here and do not list what C++17 lacks.
#endif

/// Marks what a shared library exports: each class of a public header, and each of its functions
/// that is defined in a .cpp. All else is hidden (cmake/DkfacShared.cmake);
/// tools/ci/check_exports.py checks both.
#define DKFAC_API __attribute__((visibility("default")))
/// Marks a nested class of an exported class that is not exported itself.
#define DKFAC_LOCAL __attribute__((visibility("hidden")))
