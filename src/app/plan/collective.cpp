#include "app/plan/collective.h"

#include <algorithm>
#include <cmath>

namespace dkfac::app::planning {

namespace {

/// Seconds of the processor for each further message of a rank that sends to all others.
constexpr double kMessage = 1e-6;
/// Ranks up to which each sends to each over MPI and TCP (docs/distribution.md, "Steps and bytes").
constexpr int kMostDirect = 8;

struct Nodes {
  double ranks, inside, nodes;
};
Nodes nodes_of(const Cluster& c) {
  const int inside = std::min(c.ranks, c.per_node);
  return {static_cast<double>(c.ranks), static_cast<double>(inside),
          std::ceil(static_cast<double>(c.ranks) / inside)};
}

/// Chains through all ranks, one per card of a node, which share the bytes between nodes.
Transfer chain(double bytes, const Cluster& c) {
  const Nodes n = nodes_of(c);
  return {.inner = n.inside > 1 ? bytes : 0,
          .outer = n.nodes > 1 ? bytes / n.inside : 0,
          .latency = (n.ranks - n.nodes) * c.inner.latency + (n.nodes - 1) * c.outer.latency};
}

Transfer direct(double bytes, double largest, const Cluster& c) {
  const Nodes n = nodes_of(c);
  const double others = n.ranks - 1;
  const double busiest = std::max(bytes - bytes / n.ranks, others * largest);
  const double far = (n.ranks - n.inside) / others;
  return {.inner = busiest * (1 - far),
          .outer = busiest * far,
          .latency = (n.nodes > 1 ? c.outer.latency : c.inner.latency) + (others - 1) * kMessage};
}

/// Halves of the buffer, first within the node. No half is smaller than what one owner receives.
Transfer halving(double bytes, double largest, const Cluster& c) {
  const Nodes n = nodes_of(c);
  Transfer t;
  const auto halve = [&](double& sent, double groups, const Link& link) {
    for (double left = groups; left > 1; left /= 2) {
      bytes /= 2;
      sent += std::max(bytes, largest);
      t.latency += link.latency;
    }
  };
  halve(t.inner, n.inside, c.inner);
  halve(t.outer, n.nodes, c.outer);
  return t;
}

}  // namespace

Transfer& Transfer::operator+=(const Transfer& other) {
  inner += other.inner;
  outer += other.outer;
  latency += other.latency;
  return *this;
}

double seconds(const Transfer& t, const Cluster& c) {
  const auto over = [](double bytes, const Link& link) {  // One rank alone has no links.
    return bytes > 0 ? bytes / link.bytes_per_s : 0;
  };
  return std::max(over(t.inner, c.inner), over(t.outer, c.outer)) + t.latency;
}

Transfer to_owners(double bytes, double largest, const Cluster& c) {
  if (c.ranks <= 1 || bytes <= 0) return {};
  if (c.algorithm == Algorithm::nccl) return chain(bytes, c);
  const bool one_step = c.algorithm == Algorithm::direct ||
                        (c.algorithm == Algorithm::host && c.ranks <= kMostDirect);
  return one_step ? direct(bytes, largest, c) : halving(bytes, largest, c);
}

Transfer all_reduce(double bytes, const Cluster& c) {
  if (c.ranks <= 1 || bytes <= 0) return {};
  if (c.algorithm != Algorithm::nccl) {
    Transfer t = to_owners(bytes, bytes / c.ranks, c);
    t += to_owners(bytes, bytes / c.ranks, c);
    return t;
  }
  const Nodes n = nodes_of(c);
  return {.inner = 2 * bytes * (n.inside - 1) / n.inside,
          .outer = 2 * bytes * (n.nodes - 1) / n.nodes / n.inside,
          .latency = 2 * ((n.inside - 1) * c.inner.latency +
                          std::ceil(std::log2(n.nodes)) * c.outer.latency)};
}

Transfer message(double bytes, const Cluster& c) {
  if (c.ranks <= 1 || bytes <= 0) return {};
  if (c.ranks <= c.per_node) return {.inner = bytes, .latency = c.inner.latency};
  return {.outer = bytes, .latency = c.outer.latency};
}

Cluster row_of(const Cluster& cluster, int workers) {
  Cluster row = cluster;
  row.ranks = cluster.ranks / workers;
  row.per_node = std::min(cluster.per_node, row.ranks);
  return row;
}

Cluster column_of(const Cluster& cluster, int workers) {
  Cluster column = cluster;
  column.ranks = workers;
  column.per_node = std::max(1, cluster.per_node / (cluster.ranks / workers));
  return column;
}

}  // namespace dkfac::app::planning
