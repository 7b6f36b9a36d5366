#include "dkfac/kfac/options.h"

#include "dkfac/core/error.h"

#include "kfac/shared/fields.h"

namespace dkfac::kfac {
namespace {

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
  for_each_field(*this, FieldChecks("curvature options"));
  DKFAC_CHECK(operand != DType::f64 || dtype == DType::f64,
              "[curvature options] operand is f64 but dtype is ", dtype,
              "; products are formed in dtype, so set dtype to f64 too");
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
