#pragma once

#include "dkfac/kfac/assignment.h"

#include "kfac/shared/curvature_work.h"

namespace dkfac::kfac {

/// Calls f(rank, work) for each part of the work of a layer, without the messages of its owner: a
/// rank may have several.
template <class F>
void for_work(const FactorLoads& load, const LayerOwners& at, F&& f) {
  f(at.layer, load.apply);
  for_group(at.a, at.ranks_a, [&](int r) { f(r, load.a); });
  for_group(at.g, at.ranks_g, [&](int r) { f(r, load.g); });
}

}  // namespace dkfac::kfac
