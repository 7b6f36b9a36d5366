#pragma once

#include <fcntl.h>
#include <string>
#include <sys/resource.h>

#include "dkfac/core/error.h"

#include "comm/transport/tcp_socket.h"

namespace dkfac::comm {

/// Scope that limits the number of open files.
class FileLimit {
 public:
  /// Allows `more` files in addition to those open now.
  explicit FileLimit(int more) {
    const Socket next(fcntl(0, F_DUPFD, 3));
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(next.fd() + more);
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

/// Returns the message of an Error that is no CommError, after which a job would be started again.
template <class Body>
std::string final_error(Body&& body) {
  try {
    body();
  } catch (const CommError&) {
    return "a CommError";
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace dkfac::comm
