#pragma once

#include <functional>
#include <string>
#include <thread>

namespace dkfac {

/// Returns the limits of the system on the threads of this process, e.g. "ulimit -u is 100,
/// pids.max is 64".
[[nodiscard]] std::string thread_limits();

/// Starts a thread. Throws Error that names its purpose and the limits where there cannot be one
/// more.
[[nodiscard]] std::thread start_thread(const char* purpose, std::function<void()> body);

/// Checks that `count` threads can run at a time, the calling one included: OpenMP would end the
/// process where its own do not start. Throws Error.
void require_threads(int count);

}  // namespace dkfac
