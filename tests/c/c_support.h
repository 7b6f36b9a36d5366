#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/c/dkfac.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/options.h"

/// Helpers of the tests of the C interface.
namespace dkfac::c::testing {

/// Samples and features of the layer that most tests have.
constexpr std::int64_t kRows = 8, kIn = 3, kOut = 2;

inline void expect_ok(int status) { EXPECT_EQ(status, DKFAC_OK) << dkfac_last_error(); }

/// Expects a failure whose message contains `text`.
inline void expect_failure(int status, int expected, const std::string& text) {
  EXPECT_EQ(status, expected) << dkfac_last_error();
  EXPECT_NE(std::string(dkfac_last_error()).find(text), std::string::npos) << dkfac_last_error();
}

template <auto destroy>
struct Destroy {
  void operator()(auto* object) const { destroy(object); }
};
using Comm = std::unique_ptr<dkfac_comm, Destroy<dkfac_comm_destroy>>;
using Preconditioner = std::unique_ptr<dkfac_preconditioner, Destroy<dkfac_preconditioner_destroy>>;
using Optimizer = std::unique_ptr<dkfac_optimizer, Destroy<dkfac_optimizer_destroy>>;
using Factors = std::unique_ptr<dkfac_factors, Destroy<dkfac_factors_destroy>>;

inline Comm self() {
  dkfac_comm* comm = nullptr;
  expect_ok(dkfac_comm_self(nullptr, &comm));
  return Comm(comm);
}

/// f64 values in host memory, with a C tensor of them.
struct Values {
  std::vector<std::int64_t> shape;
  std::vector<double> data;

  Values(std::vector<std::int64_t> dims, std::uint64_t seed) : shape(std::move(dims)) {
    std::int64_t count = 1;
    for (const std::int64_t n : shape) count *= n;
    Random random(seed);
    for (std::int64_t i = 0; i < count; ++i) data.push_back(random.normal());
  }
  [[nodiscard]] dkfac_tensor tensor() {
    dkfac_tensor t{};
    t.data = data.data();
    t.shape = shape.data();
    t.ndim = static_cast<std::int32_t>(shape.size());
    t.dtype = DKFAC_F64;
    return t;
  }
};

inline dkfac_layer_spec linear(std::int64_t in, std::int64_t out) {
  dkfac_layer_spec spec{};
  dkfac_layer_spec_init(&spec, sizeof spec, DKFAC_LINEAR);
  spec.in = in;
  spec.out = out;
  return spec;
}

inline dkfac_curvature_options f64_options() {
  dkfac_curvature_options options{};
  dkfac_curvature_options_init(&options, sizeof options);
  options.dtype = DKFAC_F64;
  options.statistics_interval = options.inverse_interval = 1;
  return options;
}

/// The same for C++.
inline kfac::CurvatureOptions f64_curvature() {
  return {.refresh = {.statistics_interval = 1, .inverse_interval = 1}, .dtype = DType::f64};
}

}  // namespace dkfac::c::testing
