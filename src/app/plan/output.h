#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/plan/forecast.h"

/// The plan as a table and as JSON.
namespace dkfac::app::planning {

struct Result {
  const Network& network;
  const Cluster& cluster;
  std::vector<Forecast> forecasts;
  int micro_batches = 1;
  double steps = 0;  ///< Of the recipe; 0: not known.
  struct At {
    int ranks = 1;
    std::vector<Forecast> forecasts;
  };
  std::vector<At> scaling = {};  ///< On other numbers of ranks, with the same samples of a rank.
  std::optional<double> budget = {};
  std::optional<Advice> advice = {};
};

/// Tables of seconds, by phase, and of traffic and memory, and the sentences below them.
[[nodiscard]] std::string text_of(const Result& result);
[[nodiscard]] std::string json_of(const Result& result);

}  // namespace dkfac::app::planning
