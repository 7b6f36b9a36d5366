#pragma once

#include "app/plan/machine.h"

/// Seconds and bytes of one collective: closed forms of n, P and the links.
namespace dkfac::app::planning {

/// Bytes that the busiest rank sends or receives, whichever is more, and the latency of the steps.
struct Transfer {
  double inner = 0, outer = 0;  ///< Bytes over the links within and between nodes.
  double latency = 0;           ///< Seconds.
  Transfer& operator+=(const Transfer& other);
};
/// Both links work at once.
[[nodiscard]] double seconds(const Transfer& transfer, const Cluster& cluster);

/// reduce_scatter_v of `bytes`, of which the largest segment has `largest`; all_gather_v is the
/// same backwards.
[[nodiscard]] Transfer to_owners(double bytes, double largest, const Cluster& cluster);
[[nodiscard]] Transfer all_reduce(double bytes, const Cluster& cluster);
/// A message to or from one rank, which is taken to be in another node.
[[nodiscard]] Transfer message(double bytes, const Cluster& cluster);

/// The rows and the columns of a grid with `workers` rows as clusters of their own.
[[nodiscard]] Cluster row_of(const Cluster& cluster, int workers);
[[nodiscard]] Cluster column_of(const Cluster& cluster, int workers);

}  // namespace dkfac::app::planning
