#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// Inverses rebuilt one after the other within an interval, so that its steps cost the same.
namespace dkfac::kfac {

struct StaggerItem {
  int owner = 0;
  double flops = 0;  ///< Of one rebuild.
};

/// Phase of each item in [0, interval): it is rebuilt where the number of accepted steps modulo the
/// interval is its offset. A pure function, equal on every rank. The offsets in use are as many as
/// an owner has items, at most `interval`, evenly apart; an owner's items go longest first (ties by
/// index) to its offset with the least work (ties to the earliest). So no offset of an owner gets
/// more than its even share plus one item. interval >= 1.
[[nodiscard]] std::vector<int> stagger_offsets(std::span<const StaggerItem> items, int interval);

}  // namespace dkfac::kfac
