#include "dkfac/kfac/options.h"

#include <algorithm>

#include "dkfac/core/error.h"

#include "kfac/inverse/robust_inverse.h"
#include "kfac/shared/fields.h"

namespace dkfac::kfac {
namespace {

/// Checks the options that Staleness::adaptive sets itself or does not support.
void check_adaptive(const CurvatureOptions& o) {
  const auto alone = [](const char* field, auto value) {
    DKFAC_CHECK(value <= 1, "[curvature options] ", field, " is ", value,
                " with staleness adaptive, which finds its intervals itself; leave it out");
  };
  alone("refresh.statistics_interval", o.refresh.statistics_interval);
  alone("refresh.inverse_interval", o.refresh.inverse_interval);
  DKFAC_CHECK(
      !o.refresh.stagger_inverses,
      "[curvature options] refresh.stagger_inverses is set with staleness adaptive, where each "
      "inverse follows its own statistic; choose one of them");
  DKFAC_CHECK(
      o.inverse.method != InverseMethod::ekfac,
      "[curvature options] inverse.method is ekfac with staleness adaptive; EKFAC takes both "
      "records of a layer in one step, so use fixed intervals");
}

}  // namespace

StepLength CurvatureOptions::length_rule() const {
  if (step_length == StepLength::quadratic) return StepLength::none;
  if (step_length != StepLength::automatic) return step_length;
  return kl_clip > 0 ? StepLength::none : StepLength::gradient;
}

void CurvatureOptions::validate() const {
  for_each_field(*this, FieldChecks("curvature options"));
  DKFAC_CHECK(statistics.operand != DType::f64 || dtype == DType::f64,
              "[curvature options] statistics.operand is f64 but dtype is ", dtype,
              "; products are formed in dtype, so set dtype to f64 too");
  const InverseMethod method = inverse.method;
  DKFAC_CHECK(damping_split == DampingSplit::pi || method == InverseMethod::cholesky,
              "[curvature options] damping_split is set with inverse.method ",
              method == InverseMethod::eigen ? "eigen" : "ekfac",
              ", which adds the whole damping to products and splits nothing; leave it at pi, or "
              "use cholesky");
  DKFAC_CHECK(!distribution.local_statistics || method != InverseMethod::ekfac,
              "[curvature options] distribution.local_statistics is set with inverse.method ekfac, "
              "whose second moments are those of all ranks; leave one of them out");
  DKFAC_CHECK(!distribution.split_wide || method == InverseMethod::cholesky,
              "[curvature options] distribution.split_wide is set with inverse.method ",
              method == InverseMethod::eigen ? "eigen" : "ekfac",
              ", whose eigenvectors one rank computes; leave it out, or use cholesky");
  DKFAC_CHECK(damping == 0 || relative_damping == CurvatureOptions{}.relative_damping,
              "[curvature options] damping is ", damping, " and relative_damping ",
              relative_damping, ", and each decides what lambda is; leave one of them out");
  // An inverse checks its own damping; products of eigenvalues are divided by it unchecked.
  DKFAC_CHECK(damping == 0 || method == InverseMethod::cholesky || leaves_room(dtype, damping),
              "[curvature options] damping is ", damping, ", whose reciprocal is too large for ",
              dtype, "; raise it, or set dtype to f64");
  const bool free = length_rule() == StepLength::none && step_length != StepLength::quadratic;
  DKFAC_CHECK(kl_clip == 0 || free,
              "[curvature options] kl_clip and step_length are both set, and each decides how long "
              "a step is; leave one of them out");
  if (refresh.staleness == Staleness::adaptive) check_adaptive(*this);
  DKFAC_CHECK(
      method != InverseMethod::ekfac || !refresh.delay_inverses,
      "[curvature options] refresh.delay_inverses is set with inverse.method ekfac, which "
      "projects the next gradients on the eigenvectors of this step; leave one of them out");
  const int least = std::max(refresh.statistics_interval, 1);  // 0 is at least that.
  DKFAC_CHECK(
      method != InverseMethod::ekfac || refresh.inverse_interval == 0 ||
          refresh.inverse_interval > least,
      "[curvature options] refresh.inverse_interval is ", refresh.inverse_interval,
      " with inverse.method ekfac and refresh.statistics_interval ", least,
      "; every rebuild forgets the scales of EKFAC, so that it would do what eigen does at a "
      "higher price: use eigen, or an inverse_interval larger than statistics_interval");
}

}  // namespace dkfac::kfac
