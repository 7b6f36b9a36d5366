#pragma once

#include <functional>
#include <optional>

#include "dkfac/comm/communicator.h"

#include "app/shared/errors.h"

namespace dkfac::app {

/// Collective: throws the same RunError on every rank when any rank passes a failure. It is the
/// failure of the lowest such rank.
void agree(comm::Communicator& comm, const std::optional<Failure>& mine);

/// Collective: runs `work`, which must not communicate, and then agrees on its success.
void run_and_agree(comm::Communicator& comm, const Position& position,
                   const std::function<void()>& work);

/// Collective: returns the logical OR of `mine` over all ranks.
[[nodiscard]] bool any_rank(comm::Communicator& comm, bool mine);

}  // namespace dkfac::app
