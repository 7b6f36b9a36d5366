#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Makes communicators of `size` ranks in this process, each used by its own thread, over host
/// memory or over the memory of one CUDA device that they share. At most 128 ranks. Every mismatch
/// between the calls of ranks is detected, regardless of Options::check.
///
/// A call on a CUDA stream blocks only until every rank has made it: each rank enqueues its share
/// of the work on its own stream, and events order the streams. Sums are bitwise identical to those
/// over host memory.
[[nodiscard]] DKFAC_API std::vector<std::shared_ptr<Communicator>> make_in_process(
    int size, Options options = {});

/// Runs body(comm) on one thread per rank, each with `threads_per_rank` OpenMP threads, and joins
/// them. If a rank throws, the group is aborted so that the other ranks end too. Rethrows the first
/// exception that is not a CommError, since those of lost peers only follow from it; without such a
/// one, the first exception. Throws Error if a thread does not start.
DKFAC_API void run_ranks(int size, const std::function<void(std::shared_ptr<Communicator>)>& body,
                         Options options = {}, int threads_per_rank = 1);

}  // namespace dkfac::comm
