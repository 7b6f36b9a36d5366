#include "dkfac/kfac/report.h"

#include <sstream>

namespace dkfac::kfac {
namespace {

void put(std::ostream& out, int count, const char* what) {
  if (count > 0) out << ", " << count << (count == 1 ? " rank: " : " ranks: ") << what;
}

}  // namespace

std::string StepReport::brief() const {
  std::ostringstream out;
  out << "step " << step << (updated ? ": updated" : ": skipped");
  put(out, vote.nonfinite_loss, "loss not finite");
  put(out, vote.nonfinite_gradient, "gradient not finite");
  put(out, vote.nonfinite_statistic, "statistic not finite");
  put(out, vote.data_error, "data error");
  put(out, vote.numeric_failure, "inverse failed too often");
  put(out, vote.stop, "stop");
  if (statistics_refreshed) out << ", statistics";
  if (inverses_refreshed) out << ", inverses";
  if (failed_factors > 0) out << ", " << failed_factors << " inverses kept";
  if (underflow > 0) out << ", " << underflow << " operands underflowed";
  if (damping > 0) out << ", damping " << damping;
  out << ", " << bytes << " bytes";
  return std::move(out).str();
}

}  // namespace dkfac::kfac
