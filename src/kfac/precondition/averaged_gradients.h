#pragma once

#include <string_view>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

/// Whether the caller has averaged the gradients over the ranks. Where it has not, each layer would
/// get the direction of one rank's gradient, or every rank would train a model of its own.
namespace dkfac::kfac {

struct NamedGradient {
  std::string_view layer;
  ConstTensorView values;  ///< Contiguous, not empty.
};

/// Compares 16 elements each of the first two and the last two gradients, which are of the same
/// layers on all ranks. Throws InvalidArgument on every rank where they are further apart than 1e-3
/// of the largest of them. Returns whether they told anything, alike on all ranks: all of them may
/// be zero. Waits for the device; collective.
bool require_averaged(Context& ctx, comm::Communicator& comm, std::vector<NamedGradient> gradients);

}  // namespace dkfac::kfac
