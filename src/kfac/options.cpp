#include "dkfac/kfac/options.h"

#include <cmath>

#include "dkfac/core/error.h"

namespace dkfac::kfac {
namespace {

void check_positive(const char* field, double value) {
  DKFAC_CHECK(value > 0 && std::isfinite(value), "[curvature options] ", field, " is ", value,
              "; it must be positive and finite");
}

void check_at_least(const char* field, std::int64_t value, std::int64_t least) {
  DKFAC_CHECK(value >= least, "[curvature options] ", field, " is ", value,
              "; it must be at least ", least);
}

}  // namespace

void CurvatureOptions::validate() const {
  check_positive("damping", damping);
  check_positive("bn_damping", bn_damping);
  DKFAC_CHECK(new_weight > 0 && new_weight <= 1, "[curvature options] new_weight is ", new_weight,
              "; it must be in (0, 1], 1 for no average");
  check_at_least("statistics_interval", statistics_interval, 1);
  check_at_least("inverse_interval", inverse_interval, 1);
  check_at_least("micro_batches", micro_batches, 1);
  DKFAC_CHECK(dtype == DType::f32 || dtype == DType::f64, "[curvature options] dtype is ", dtype,
              "; factors and inverses are f32 or f64");
  if (operand) {
    DKFAC_CHECK(*operand != DType::i32, "[curvature options] operand is ", *operand,
                "; it must be a floating type");
    DKFAC_CHECK(*operand != DType::f64 || dtype == DType::f64,
                "[curvature options] operand is f64 but dtype is ", dtype,
                "; products are formed in dtype, so set dtype to f64 too");
  }
  check_at_least("max_failed_refreshes", max_failed_refreshes, 0);
  check_at_least("bucket_bytes", bucket_bytes, 1);
}

}  // namespace dkfac::kfac
