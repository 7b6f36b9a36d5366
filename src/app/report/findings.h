#pragma once

#include <string>
#include <vector>

#include "app/report/format.h"
#include "app/shared/report.h"

namespace dkfac::app {

/// The outcome of a comparison in one respect, in words.
struct Finding {
  std::string what;                  ///< Title: "Fewest epochs to 90 %"; "Epochs to 90 %" for one
                                     ///< group.
  std::string claim;                 ///< "reaches 90 % test accuracy in the fewest epochs"
  std::vector<std::size_t> winners;  ///< Indices into Comparison::groups.
  std::string names;                 ///< Names of the winners: "kfac and sgd"
  std::string value;                 ///< Value of the winners, with unit.
  std::string overlaps;  ///< The next groups, if the ranges over seeds overlap; else empty.
  std::string next;      ///< "sgd with 8.2 epochs (1.9 times as many)"; empty when all are winners.
};
[[nodiscard]] std::vector<Finding> findings(const Comparison& comparison, Dash dash);
/// Returns caveats of the comparison: targets missed, failures, a single seed.
[[nodiscard]] std::vector<std::string> caveats(const Comparison& comparison);

}  // namespace dkfac::app
