#pragma once

#include "app/shared/errors.h"

namespace dkfac::app {

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

}  // namespace dkfac::app
