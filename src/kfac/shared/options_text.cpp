#include "kfac/shared/options_text.h"

#include "dkfac/core/error.h"

#include "core/shared/registration.h"

namespace dkfac::kfac {

using dkfac::exact;

std::string exact(const CurvatureOptions& o) {
  return detail::concat(
      "damping ", exact(o.damping), "\nbn_damping ", exact(o.bn_damping), "\nnew_weight ",
      exact(o.new_weight), "\nstatistics_interval ", o.statistics_interval, "\ninverse_interval ",
      o.inverse_interval, "\nstaleness ", static_cast<int>(o.staleness), "\nstaleness_alpha ",
      exact(o.staleness_alpha), "\nmax_interval ", o.max_interval, "\nspread_inverses ",
      o.spread_inverses, "\nsharing ", static_cast<int>(o.sharing), "\nstatistics_fraction ",
      exact(o.statistics_fraction), "\nlow_rank ", o.low_rank, "\nkl_clip ", exact(o.kl_clip),
      "\nstatistics_wire ", o.statistics_wire ? std::string(name_of(*o.statistics_wire)) : "unset",
      "\nworker_fraction ", exact(o.worker_fraction), "\ncalibrate ", o.calibrate,
      "\nmicro_batches ", o.micro_batches, "\ninverse ", static_cast<int>(o.inverse),
      "\nbatch_norm ", static_cast<int>(o.batch_norm), "\noperand ",
      o.operand ? std::string(name_of(*o.operand)) : "unset", "\ndtype ", o.dtype,
      "\nloss_reduction ", static_cast<int>(o.loss_reduction), "\nmax_failed_refreshes ",
      o.max_failed_refreshes, "\noverlap ", o.overlap, "\nbucket_bytes ", o.bucket_bytes,
      "\ndamping_split ", static_cast<int>(o.damping_split), '\n');
}

}  // namespace dkfac::kfac
