#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dkfac/comm/communicator.h"

namespace dkfac::comm {

/// `size` ranks of this process, one per calling thread, over host memory. Every mismatch between
/// ranks is noticed when they meet, whatever Options::check says.
[[nodiscard]] std::vector<std::shared_ptr<Communicator>> make_in_process(int size,
                                                                         Options options = {});

/// Runs body(comm) on one thread per rank, each with one OpenMP thread (`threads_per_rank`), and
/// joins them. When a rank throws, the group is aborted so that its peers end too, and the
/// first exception that is not a CommError is rethrown, or else the first: a lost peer is an echo.
void run_ranks(int size, const std::function<void(std::shared_ptr<Communicator>)>& body,
               Options options = {}, int threads_per_rank = 1);

}  // namespace dkfac::comm
