#pragma once

#include <string>
#include <vector>

#include "app/report/format.h"
#include "app/shared/report.h"

namespace dkfac::app {

/// One respect in which the groups were compared, in words.
struct Finding {
  std::string what;                  ///< "Fewest epochs to 90 %"; "Epochs to 90 %" of one group.
  std::string claim;                 ///< "reaches 90 % test accuracy in the fewest epochs"
  std::vector<std::size_t> winners;  ///< Indices into Comparison::groups.
  std::string names;                 ///< The winners': "kfac and sgd"
  std::string value;                 ///< The winners', with unit.
  std::string overlaps;  ///< Who comes next, if the ranges over seeds overlap; else empty.
  std::string next;      ///< "sgd with 8.2 epochs (1.9 times as many)"; empty when all are winners.
};
[[nodiscard]] std::vector<Finding> findings(const Comparison& comparison, Dash dash);
/// What must be known beside the winners: targets missed, failures, a single seed.
[[nodiscard]] std::vector<std::string> caveats(const Comparison& comparison);

}  // namespace dkfac::app
