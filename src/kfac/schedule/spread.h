#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// Inverses rebuilt one after the other within an interval, so that its steps cost the same.
namespace dkfac::kfac {

struct SpreadItem {
  int owner = 0;
  double flops = 0;  ///< Of one rebuild.
};

/// Phase of each item in [0, interval): it is rebuilt where the number of accepted steps modulo the
/// interval is its phase. A pure function, equal on every rank. The phases in use are as many as an
/// owner has items, at most `interval`, evenly apart; an owner's items go longest first (ties by
/// index) to its phase with the least work (ties to the earliest). So no phase of an owner gets
/// more than its even share plus one item. interval >= 1.
[[nodiscard]] std::vector<int> spread_phases(std::span<const SpreadItem> items, int interval);

}  // namespace dkfac::kfac
