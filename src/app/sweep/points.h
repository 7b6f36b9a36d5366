#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "app/sweep/spec.h"

namespace dkfac::app {

/// One run of a sweep.
struct Trial {
  std::string name = {};              ///< "run-001"
  std::filesystem::path config = {};  ///< The file.
  Settings settings = {};             ///< Of the point alone; those for all runs stand in the spec.
  std::int64_t epochs = 0;            ///< run.epochs of its configuration.
};

/// Every point of the grid, with the draws of each round beside; all of that for each
/// configuration. A key that does not count there (eta where the optimizer is not LARS) is left
/// out, and of points that are then equal one stays. Each is checked as `dkfac train` would. Throws
/// InvalidArgument.
[[nodiscard]] std::vector<Trial> points_of(const SweepSpec& spec);

/// Draw number `index`: a function of (seed, key, index) alone, so that another key more changes no
/// value of the others. Four significant digits, or a whole number.
[[nodiscard]] std::string drawn(const Draw& draw, std::uint64_t seed, const std::string& key,
                                std::int64_t index);

/// Epochs after which runs are compared; the last is run.epochs. Throws InvalidArgument when runs
/// differ in run.epochs and some are to be stopped early.
[[nodiscard]] std::vector<std::int64_t> rungs_of(const SweepSpec& spec,
                                                 const std::vector<Trial>& points);

/// Indices from best to worst; a NaN is worse than any number, and of equals the first is better.
[[nodiscard]] std::vector<std::size_t> ranked(std::span<const double> scores, Metric metric);
/// How many of so many go on: one of eta, rounded down, but never none.
[[nodiscard]] std::size_t survivors(std::size_t runs, std::int64_t eta);

/// The settings in few words: "damping 0.1, lr 0.3"; the whole key where the last part of two is
/// the same.
[[nodiscard]] std::string label_of(const Settings& settings);
/// Every --set of a point: those for all, then its own.
[[nodiscard]] std::vector<std::string> overrides_of(const SweepSpec& spec, const Trial& point);

}  // namespace dkfac::app
