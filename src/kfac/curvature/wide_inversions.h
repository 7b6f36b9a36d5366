#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "dkfac/comm/communicator.h"

#include "kfac/curvature/layer_table.h"
#include "kfac/inverse/refresh.h"

namespace dkfac::kfac {

/// Inversions of wide factors by several ranks together (DistributionOptions::split_wide). On the
/// host.
class WideInversions {
 public:
  /// The table's statistics have owners. Makes the groups of ranks; collective.
  explicit WideInversions(LayerTable& layers);
  /// Inverts what is due and this rank takes part in; all ranks call it. Of this rank's rebuilds
  /// `tasks`, those that are done are `written`; where an inversion fails, its rebuild is left to
  /// this rank alone. Returns the bytes passed to collectives.
  std::uint64_t run(std::span<RefreshTask> tasks);

 private:
  /// task: of the rank that averages the factor, where it has one.
  void invert(const Statistic& s, RefreshTask* task);
  [[nodiscard]] std::uint64_t bytes() const;

  LayerTable& layers_;
  std::map<int, std::shared_ptr<comm::Communicator>> groups_;  ///< This rank's, by their size.
};

}  // namespace dkfac::kfac
