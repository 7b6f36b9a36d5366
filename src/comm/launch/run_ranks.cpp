#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "core/shared/thread_start.h"

namespace dkfac::comm {

namespace {

/// Keeps the exception to rethrow: the first that is not a CommError, else the first. During stack
/// unwinding a rank drops its pending collectives before its exception arrives here, so a CommError
/// that follows from it on a peer may arrive earlier.
class FirstFailure {
 public:
  void keep(std::exception_ptr error, bool may_be_echo) {
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr && (may_be_echo || !is_echo_)) return;
    error_ = std::move(error);
    is_echo_ = may_be_echo;
  }
  void rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool is_echo_ = false;
};

void run_rank(std::shared_ptr<Communicator> comm, int threads,
              const std::function<void(std::shared_ptr<Communicator>)>& body,
              FirstFailure& failure) {
  try {
    set_threads(threads);
    body(comm);
  } catch (const CommError& error) {
    failure.keep(std::current_exception(), true);
    comm->abort(error.what());
  } catch (const std::exception& error) {
    failure.keep(std::current_exception(), false);
    comm->abort(error.what());
  } catch (...) {
    failure.keep(std::current_exception(), false);
    comm->abort("an exception that is no std::exception");
  }
}

}  // namespace

void run_ranks(int size, const std::function<void(std::shared_ptr<Communicator>)>& body,
               Options options, int threads_per_rank) {
  DKFAC_CHECK(threads_per_rank > 0, "[run_ranks] threads_per_rank is ", threads_per_rank,
              "; it must be > 0");
  auto ranks = make_in_process(size, options);
  FirstFailure failure;
  std::vector<std::thread> threads;
  try {
    for (auto& comm : ranks) {
      threads.emplace_back(run_rank, std::move(comm), threads_per_rank, std::cref(body),
                           std::ref(failure));
    }
  } catch (const std::exception& error) {
    failure.keep(std::make_exception_ptr(Error(detail::concat(
                     "[run_ranks] the thread of rank ", threads.size(), " of ", size,
                     " did not start: ", error.what(), " (", thread_limits(),
                     ")"
                     "; use fewer ranks, or raise the limits on threads and memory"))),
                 false);
    ranks.clear();  // The ranks that run learn that the others have left.
  }
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace dkfac::comm
