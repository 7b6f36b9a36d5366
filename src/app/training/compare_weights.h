#pragma once

#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/nn/model.h"

namespace dkfac::app {

/// Collective: compares the parameters of the ranks, which are equal in every bit after each step,
/// by a CRC-32C of each. Returns the first that differs with the ranks whose bits are not those of
/// most, as a sentence; empty: all are equal.
[[nodiscard]] std::string unlike_weights(Context& ctx, nn::Model& model, comm::Communicator& comm);

}  // namespace dkfac::app
