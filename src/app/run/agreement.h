#pragma once

#include <functional>
#include <optional>

#include "dkfac/comm/communicator.h"

#include "app/shared/errors.h"

namespace dkfac::app {

/// Collective: throws the same RunError on every rank when any rank brings a failure: rank 0's,
/// else that of the lowest rank.
void agree(comm::Communicator& comm, const std::optional<Failure>& mine);

/// Runs `work`, which must not communicate, and then agrees about its success.
void run_and_agree(comm::Communicator& comm, const Position& position,
                   const std::function<void()>& work);

/// Collective: true on every rank when it is on some rank.
[[nodiscard]] bool any_rank(comm::Communicator& comm, bool mine);

}  // namespace dkfac::app
