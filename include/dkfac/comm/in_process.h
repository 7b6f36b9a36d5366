#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// `size` ranks of this process, one per calling thread, over host memory, or over the memory of
/// one CUDA device that all of them share. Every mismatch between ranks is noticed when they meet,
/// whatever Options::check says.
///
/// On a CUDA stream a call blocks until every rank has made it, and for nothing else: each rank
/// puts its share of the work on its own stream, and events order the streams. Sums have the bits
/// of those over host memory. At most 128 ranks.
[[nodiscard]] DKFAC_API std::vector<std::shared_ptr<Communicator>> make_in_process(
    int size, Options options = {});

/// Runs body(comm) on one thread per rank, each with one OpenMP thread (`threads_per_rank`), and
/// joins them. When a rank throws, the group is aborted so that its peers end too, and the
/// first exception that is not a CommError is rethrown, or else the first: a lost peer is an echo.
DKFAC_API void run_ranks(int size, const std::function<void(std::shared_ptr<Communicator>)>& body,
                         Options options = {}, int threads_per_rank = 1);

}  // namespace dkfac::comm
