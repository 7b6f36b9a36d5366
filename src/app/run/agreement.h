#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"

#include "app/shared/errors.h"

namespace dkfac::app {

/// Collective: throws the same RunError on every rank when any rank passes a failure. It is the
/// failure of the lowest such rank.
void agree(comm::Communicator& comm, const std::optional<Failure>& mine);

/// Collective: runs `work`, which must not communicate, and then agrees on its success.
void run_and_agree(comm::Communicator& comm, const Position& position,
                   const std::function<void()>& work);

/// Calls a collective that throws on every rank or on none, and turns its InvalidArgument and
/// NumericError into a RunError of all ranks.
template <class Work>
void on_all_ranks(const Position& position, Work work) {
  const auto raise = [&] {
    throw RunError(describe_current_exception(0, position), RunError::Scope::every_rank);
  };
  try {
    work();
  } catch (const InvalidArgument&) {
    raise();
  } catch (const NumericError&) {
    raise();
  }
}

/// Collective: returns the logical OR of `mine` over all ranks.
[[nodiscard]] bool any_rank(comm::Communicator& comm, bool mine);
/// Collective: returns the different lines of all ranks, without empty ones.
[[nodiscard]] std::set<std::string> all_lines(comm::Communicator& comm,
                                              const std::vector<std::string>& mine);

}  // namespace dkfac::app
