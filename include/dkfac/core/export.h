#pragma once

/// Marks what a shared library exports: each class of a public header, and each of its functions
/// that is defined in a source. All else is hidden (cmake/DkfacShared.cmake);
/// tools/check_exports.py checks both.
#define DKFAC_API __attribute__((visibility("default")))
/// Marks a nested class of an exported class that is not exported itself.
#define DKFAC_LOCAL __attribute__((visibility("hidden")))
