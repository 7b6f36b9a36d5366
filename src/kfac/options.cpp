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

void check_share(const char* field, double value) {
  DKFAC_CHECK(value > 0 && value <= 1, "[curvature options] ", field, " is ", value,
              "; it must be in (0, 1]");
}

/// What the adaptive rule decides itself, or cannot go with.
void check_adaptive(const CurvatureOptions& o) {
  const auto alone = [](const char* field, auto value) {
    DKFAC_CHECK(value == 1, "[curvature options] ", field, " is ", value,
                " with staleness adaptive, which finds its intervals itself; leave it at 1");
  };
  alone("statistics_interval", o.statistics_interval);
  alone("inverse_interval", o.inverse_interval);
  DKFAC_CHECK(!o.spread_inverses,
              "[curvature options] spread_inverses is set with staleness adaptive, where each "
              "inverse follows its own statistic; choose one of them");
  DKFAC_CHECK(o.inverse != InverseMethod::ekfac,
              "[curvature options] inverse is ekfac with staleness adaptive; EKFAC takes both "
              "records of a layer in one step, so use fixed intervals");
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
  DKFAC_CHECK(staleness_alpha >= 0 && std::isfinite(staleness_alpha),
              "[curvature options] staleness_alpha is ", staleness_alpha,
              "; it must be finite and not negative");
  check_at_least("max_interval", max_interval, 0);
  check_share("statistics_fraction", statistics_fraction);
  DKFAC_CHECK(kl_clip >= 0 && std::isfinite(kl_clip), "[curvature options] kl_clip is ", kl_clip,
              "; it must be finite and not negative, 0 for none");
  DKFAC_CHECK(worker_fraction >= 0 && worker_fraction <= 1,
              "[curvature options] worker_fraction is ", worker_fraction,
              "; it must be in [0, 1], 0 for the owner alone");
  if (statistics_wire) {
    DKFAC_CHECK(*statistics_wire == DType::f32 || *statistics_wire == DType::bf16 ||
                    *statistics_wire == DType::f16,
                "[curvature options] statistics_wire is ", *statistics_wire,
                "; it must be f32, bf16 or f16");
  }
  DKFAC_CHECK(damping_split == DampingSplit::pi || inverse == InverseMethod::cholesky,
              "[curvature options] damping_split is set with inverse ",
              inverse == InverseMethod::eigen ? "eigen" : "ekfac",
              ", which adds the whole damping to products and splits nothing; leave it at pi, or "
              "use cholesky");
  if (staleness == Staleness::adaptive) check_adaptive(*this);
  DKFAC_CHECK(
      inverse != InverseMethod::ekfac || inverse_interval > statistics_interval,
      "[curvature options] inverse_interval is ", inverse_interval,
      " with inverse ekfac and statistics_interval ", statistics_interval,
      "; every rebuild forgets the scales of EKFAC, so that it would do what eigen does at a "
      "higher price: use eigen, or an inverse_interval larger than statistics_interval");
}

}  // namespace dkfac::kfac
