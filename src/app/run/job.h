#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"

#include "app/shared/commands.h"
#include "app/shared/config.h"
#include "app/shared/errors.h"

namespace dkfac::app {

/// Settings of a command that runs on all ranks.
struct Job {
  int ranks = 1;  ///< Threads of this process; ignored when a launcher started several processes.
  Connection connection = {};
  int ranks_per_node = 0;  ///< For two-level collectives; 0: one level.
  /// Failure before any communication, e.g. a bad configuration; agreed on and reported once.
  std::optional<Failure> early = {};
  /// Called on each process with `early`, or with a failure to reach the other ranks.
  std::function<void(int rank, const Failure&)> refused = {};
};

/// Runs `body` on every rank and returns the exit code. Exceptions become one error line for the
/// job: that of the failed rank, or of rank 0 when all failed alike.
[[nodiscard]] int run_job(const Job& job, const Terminal& terminal,
                          const std::function<void(std::shared_ptr<comm::Communicator>)>& body);

/// Runs `work` and returns its exception as a failure in `activity` of this process.
[[nodiscard]] std::optional<Failure> attempt(const char* activity,
                                             const std::function<void()>& work);

/// Runs `work` on rank 0, without communication: every process of a job would do the same. Reports
/// a failure, and returns the exit code.
[[nodiscard]] int run_alone(const char* activity, const Terminal& terminal,
                            const std::function<void()>& work);

/// Reports a failure before any command has begun, and returns its exit code.
[[nodiscard]] int refuse(const Failure& failure, const Terminal& terminal);

/// Prints a line for each of them.
void print_warnings(const std::vector<std::string>& warnings, const Terminal& terminal);
/// Prints config.remarks so, on rank 0 only.
void print_remarks(const Config& config, int rank, const Terminal& terminal);
/// Prints so what makes runs slow on this processor, on rank 0 only, where they are of the CPU:
/// BackendInfo::warning, and 16-bit activations that it multiplies no faster.
void print_processor_warnings(std::span<const Config> configs, int rank, const Terminal& terminal);

/// Sets the OpenMP threads of this rank to `threads`, or where that is 0 to its share: cores that
/// several ranks of one machine may use are divided equally, unless OMP_NUM_THREADS is set.
/// Collective. Throws as check_threads().
void share_cores(comm::Communicator& comm, int threads);

/// Throws Error where the OpenMP threads of this rank cannot be started, and InvalidArgument where
/// they are too many: OpenMP itself would end the process.
void check_threads();

}  // namespace dkfac::app
