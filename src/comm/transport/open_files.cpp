#include "comm/transport/open_files.h"

#include <algorithm>
#include <filesystem>
#include <sys/resource.h>
#include <system_error>

#include "dkfac/core/error.h"

namespace dkfac::comm {
namespace {

constexpr rlim_t kListeners = 2;  ///< Of the mesh, and of rank 0 while the ranks meet.
constexpr rlim_t kSpare = 64;     ///< For files that the program opens beside connections.

rlim_t open_files() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 3 : static_cast<rlim_t>(std::distance(begin(files), end(files)));
}

}  // namespace

void reserve_files(int more) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = open_files() + static_cast<rlim_t>(std::max(more, 0)) + kListeners;
  if (needed + kSpare <= limit.rlim_cur) return;
  if (needed > limit.rlim_max)
    throw Error(detail::concat(
        "[tcp] connections to other ranks need ", needed, " open files, and the hard limit is ",
        limit.rlim_max, " (ulimit -Hn); raise it on each machine, start fewer ranks, or use MPI"));
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);  // Where it may not, a missing file is an error later.
}

}  // namespace dkfac::comm
