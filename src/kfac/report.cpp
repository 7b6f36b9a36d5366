#include "dkfac/kfac/report.h"

#include <algorithm>
#include <iterator>
#include <sstream>

namespace dkfac::kfac {
namespace {

void put(std::ostream& out, int count, const char* what) {
  if (count > 0) out << ", " << count << (count == 1 ? " rank: " : " ranks: ") << what;
}

/// Writes "statistics", preceded by their number where each has its own refresh steps.
void put_statistics(std::ostream& out, std::span<const StatisticReport> statistics) {
  const auto refreshed = std::ranges::count_if(statistics, &StatisticReport::refreshed);
  out << ", ";
  if (refreshed > 0 && refreshed < std::ssize(statistics))
    out << refreshed << " of " << statistics.size() << ' ';
  out << "statistics";
}

}  // namespace

std::string StepReport::brief() const {
  std::ostringstream out;
  out << "step " << step << (updated ? ": updated" : ": skipped");
  put(out, agreement.nonfinite_loss, "loss not finite");
  put(out, agreement.nonfinite_gradient, "gradient not finite");
  put(out, agreement.nonfinite_statistic, "statistic not finite");
  put(out, agreement.data_error, "data error");
  put(out, agreement.numeric_failure, "inverse failed too often");
  put(out, agreement.stop, "stop");
  if (statistics_refreshed) put_statistics(out, statistics);
  if (inverses_refreshed) out << ", inverses";
  constexpr const char* kStages[] = {"", "more damped", "in f64", "clipped"};
  for (std::size_t stage = 1; stage < std::size(kStages); ++stage)
    if (inverses[stage] > 0) out << ", " << inverses[stage] << " inverses " << kStages[stage];
  if (failed_factors > 0)
    out << ", " << failed_factors << (failed_factors == 1 ? " factor" : " factors")
        << " failed, old one kept";
  if (!without_inverse.empty())
    out << ", " << without_inverse.size() << " layers without an inverse";
  if (underflow > 0) out << ", " << underflow << " operands underflowed";
  if (saturated > 0) out << ", " << saturated << " weights past their wire";
  if (intervals_chosen)
    out << ", from now on statistics every " << statistics_interval << " and inverses every "
        << inverse_interval << " steps, which adds " << overhead << " to a step";
  if (damping > 0) out << ", damping " << damping;
  out << ", " << bytes << " bytes";
  if (bytes_skipped > 0) out << " (" << bytes_skipped << " skipped)";
  return std::move(out).str();
}

}  // namespace dkfac::kfac
