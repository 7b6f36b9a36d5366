#pragma once

#include <span>
#include <vector>

/// Distributes rebuilds of inverses over the steps of an interval, to even out the cost of a step.
/// An item is a layer.
namespace dkfac::kfac {

struct StaggerItem {
  int owner = 0;
  double flops = 0;  ///< Of one rebuild.
};

/// Returns the offset of each item in [0, interval), the number of accepted steps from the start of
/// an interval to its rebuild. A pure function, equal on every rank.
///
/// An owner uses as many evenly spaced offsets as it has items, at most `interval`. Its items are
/// assigned in order of decreasing flops (ties by index), each to the offset with the least work so
/// far (ties to the earliest). No offset of an owner therefore gets more than an even share plus
/// one item. interval >= 1.
[[nodiscard]] std::vector<int> stagger_offsets(std::span<const StaggerItem> items, int interval);

}  // namespace dkfac::kfac
