#include "core/shared/thread_start.h"

#include <fstream>
#include <latch>
#include <sys/resource.h>
#include <system_error>
#include <utility>
#include <vector>

#include "dkfac/core/error.h"

namespace dkfac {
namespace {

/// Returns the limit of the container, or nothing where there is none.
std::string pids_limit() {
  std::string group, limit;
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);)
    if (line.starts_with("0::")) group = line.substr(3);
  for (const std::string& folder : {"/sys/fs/cgroup" + group, std::string("/sys/fs/cgroup"),
                                    std::string("/sys/fs/cgroup/pids")})
    if (std::ifstream file(folder + "/pids.max"); file >> limit && limit != "max") return limit;
  return {};
}

}  // namespace

std::string thread_limits() {
  rlimit users{};
  std::string text;
  if (getrlimit(RLIMIT_NPROC, &users) == 0)
    text = "ulimit -u is " +
           (users.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(users.rlim_cur));
  if (const std::string pids = pids_limit(); !pids.empty())
    text += (text.empty() ? "pids.max is " : ", pids.max is ") + pids;
  return text.empty() ? "no limit is known" : text;
}

std::thread start_thread(const char* purpose, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw Error(detail::concat("[threads] a thread for ", purpose, " did not start: ", error.what(),
                               " (", thread_limits(),
                               "); raise the limit on threads or memory, or use fewer threads"));
  }
}

void require_threads(int count) {
  std::latch over(1);
  std::vector<std::thread> threads;
  const auto end = [&] {
    over.count_down();
    for (std::thread& thread : threads) thread.join();
  };
  const std::string purpose =
      detail::concat("OpenMP (", count, " of them; OMP_NUM_THREADS sets their number)");
  try {
    while (static_cast<int>(threads.size()) + 1 < count)
      threads.push_back(start_thread(purpose.c_str(), [&over] { over.wait(); }));
  } catch (...) {
    end();
    throw;
  }
  end();
}

}  // namespace dkfac
