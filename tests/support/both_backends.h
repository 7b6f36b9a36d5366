#pragma once

#include <string>

#include <gtest/gtest.h>

#include "dkfac/core/context.h"

namespace dkfac::testing {

/// A test with a context `ctx` of its backend, for code above the operations.
class BothBackends : public ::testing::TestWithParam<Backend> {
 protected:
  Context ctx{Device::cpu(), {.backend = GetParam()}};
};

inline std::string name_of_backend(const ::testing::TestParamInfo<Backend>& info) {
  return info.param == Backend::fast ? "fast" : "reference";
}

}  // namespace dkfac::testing

/// Instantiates a suite derived from BothBackends.
#define DKFAC_BOTH_BACKENDS(suite)                                                                 \
  INSTANTIATE_TEST_SUITE_P(Backends, suite,                                                        \
                           ::testing::Values(::dkfac::Backend::fast, ::dkfac::Backend::reference), \
                           ::dkfac::testing::name_of_backend)
