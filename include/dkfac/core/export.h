#pragma once

/// What a shared library exports: each class of a public header, and each function that is defined
/// elsewhere. All else is hidden (cmake/DkfacShared.cmake); tools/check_exports.py compares.
#define DKFAC_API __attribute__((visibility("default")))
/// A class within one of these that is not exported.
#define DKFAC_LOCAL __attribute__((visibility("hidden")))
