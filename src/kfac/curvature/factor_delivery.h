#pragma once

#include <cstddef>
#include <vector>

#include "dkfac/comm/communicator.h"

#include "comm/collective/host_device_pair.h"
#include "comm/collective/part_exchange.h"
#include "kfac/curvature/layer_table.h"

namespace dkfac::kfac {

/// What a rank sends another of a factor that it averages.
struct DeliveredPart {
  StatisticId id = kNoStatistic;
  comm::Route route;
};

/// What ranks send each other for layers whose factors are averaged by different ranks
/// (DistributionOptions::split_factors). Before a rebuild: the traces by which the damping is
/// split, to the rank of the other factor. After it: the inverse and whether it is valid, to the
/// owner of the layer, unless a worker of the layer has built it. Both are collective.
class FactorDelivery {
 public:
  /// The table's layers have owners, statistics and memory.
  explicit FactorDelivery(LayerTable& layers);
  /// Whether a layer has factors on different ranks; equal on all ranks. Otherwise nothing is sent,
  /// and there is no memory.
  [[nodiscard]] bool needed() const { return !traces_.empty(); }
  /// Send what this step rebuilds. all: whatever there is to send, as a rank may have loaded an
  /// inverse that it cannot use and no other knows of.
  void send_traces(bool all);
  void send_inverses(bool all);
  [[nodiscard]] std::size_t bytes() const;

 private:
  /// The parts of `from` that are sent in this step. partners: those of both factors of a layer
  /// where one is rebuilt.
  void choose(const std::vector<DeliveredPart>& from, bool all, bool partners);
  [[nodiscard]] Factor& factor(const DeliveredPart& part);
  /// Calls body(part, its index, start of its head) for the parts that this rank sends, or for
  /// those that it receives.
  template <class Body>
  void for_parts(int comm::Route::*side, Body&& body);

  LayerTable& layers_;
  std::vector<DeliveredPart> traces_, inverses_;  ///< All there may be, equal on all ranks.
  std::vector<DeliveredPart> parts_;              ///< Of this step.
  comm::PartExchange trace_exchange_, inverse_exchange_;
  comm::HostDevicePair heads_;  ///< f64: heads of all parts of a step.
};

}  // namespace dkfac::kfac
