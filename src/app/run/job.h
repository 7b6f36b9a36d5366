#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "dkfac/comm/communicator.h"

#include "app/shared/commands.h"
#include "app/shared/config.h"
#include "app/shared/errors.h"

namespace dkfac::app {

/// A command as one program over all ranks.
struct Job {
  int ranks = 1;  ///< Threads of this process; the launcher decides when it started several.
  comm::Options options = {};
  int ranks_per_node = 0;  ///< For collectives in two levels; 0: one level.
  /// A failure before any communication, e.g. a bad configuration: agreed on and reported once.
  std::optional<Failure> early = {};
};

/// Runs `body` on every rank and returns the exit code. Exceptions become one error line for the
/// job: of the rank that failed, or of rank 0 when all failed alike.
[[nodiscard]] int run_job(const Job& job, const Terminal& terminal,
                          const std::function<void(std::shared_ptr<comm::Communicator>)>& body);

/// Runs `work` and gives what it throws as a failure in `phase` of this process.
[[nodiscard]] std::optional<Failure> attempt(const char* phase, const std::function<void()>& work);

/// A line for each of config.remarks, of rank 0 alone.
void print_remarks(const Config& config, int rank, const Terminal& terminal);

/// OpenMP threads of this rank when the configuration leaves them open: cores that several ranks of
/// one machine may use are shared out equally. 0 (leave them) when OMP_NUM_THREADS is set.
[[nodiscard]] int default_threads(comm::Communicator& comm);

}  // namespace dkfac::app
