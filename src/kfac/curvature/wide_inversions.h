#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "dkfac/comm/communicator.h"

#include "kfac/curvature/layer_table.h"
#include "kfac/inverse/refresh.h"

namespace dkfac::kfac {

/// Inversions of wide factors by several ranks together (DistributionOptions::split_wide).
class WideInversions {
 public:
  /// The table's statistics have owners. Makes the groups of ranks; collective.
  explicit WideInversions(LayerTable& layers);
  /// Inverts what is due and this rank takes part in, and offers the inverses of this rank's
  /// rebuilds `tasks` to the workers; all ranks call it. Returns the bytes passed to collectives.
  std::uint64_t run(RefreshWorkers& workers, std::span<RefreshTask> tasks);

 private:
  [[nodiscard]] std::uint64_t bytes() const;

  LayerTable& layers_;
  std::map<int, std::shared_ptr<comm::Communicator>> groups_;  ///< This rank's, by their size.
};

}  // namespace dkfac::kfac
