#pragma once

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/core/context.h"
#include "dkfac/core/types.h"

namespace dkfac::testing {

/// The parameters of an operation test.
struct BackendCase {
  Backend backend;
  DType dtype;
};

inline std::string name_of_case(const ::testing::TestParamInfo<BackendCase>& info) {
  return std::string(info.param.backend == Backend::fast ? "fast" : "reference") + "_" +
         std::string(name_of(info.param.dtype));
}

/// A test with a context `ctx` of its backend. One thread, so that thousands of small calls do not
/// wait for each other on a busy machine; tests of threads set their number.
class EachBackend : public ::testing::TestWithParam<BackendCase> {
 protected:
  [[nodiscard]] DType dtype() const { return GetParam().dtype; }
  [[nodiscard]] double epsilon() const {
    return dtype() == DType::f64 ? std::numeric_limits<double>::epsilon()
                                 : static_cast<double>(std::numeric_limits<float>::epsilon());
  }
  Context ctx{Device::cpu(), {.backend = GetParam().backend, .threads = 1}};
};

}  // namespace dkfac::testing

/// Instantiates a suite derived from EachBackend over {reference, fast} x {f32, f64}.
#define DKFAC_EACH_BACKEND(suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(                                                                \
      Backends, suite,                                                                     \
      ::testing::Values(                                                                   \
          ::dkfac::testing::BackendCase{::dkfac::Backend::reference, ::dkfac::DType::f32}, \
          ::dkfac::testing::BackendCase{::dkfac::Backend::reference, ::dkfac::DType::f64}, \
          ::dkfac::testing::BackendCase{::dkfac::Backend::fast, ::dkfac::DType::f32},      \
          ::dkfac::testing::BackendCase{::dkfac::Backend::fast, ::dkfac::DType::f64}),     \
      ::dkfac::testing::name_of_case)
