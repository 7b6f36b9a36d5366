#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "core/shared/thread_start.h"

namespace dkfac::comm {

namespace {

/// Keeps what the ranks threw. During stack unwinding a rank drops its pending collectives before
/// its exception arrives here, so a CommError that follows from it on a peer may arrive earlier.
/// Every exception lives until the ranks are joined: a rank may still read the text of its own.
class Failures {
 public:
  void keep(std::exception_ptr error, bool may_be_echo) {
    const std::lock_guard lock(mutex_);
    errors_.push_back(std::move(error));
    if (first_cause_ == nullptr && !may_be_echo) first_cause_ = errors_.back();
  }
  /// The first that is not a CommError, else the first.
  void rethrow() const {
    if (first_cause_ != nullptr) std::rethrow_exception(first_cause_);
    if (!errors_.empty()) std::rethrow_exception(errors_.front());
  }

 private:
  std::mutex mutex_;
  std::vector<std::exception_ptr> errors_;
  std::exception_ptr first_cause_;
};

void run_rank(std::shared_ptr<Communicator> comm, int threads,
              const std::function<void(std::shared_ptr<Communicator>)>& body, Failures& failures) {
  try {
    set_threads(threads);
    body(comm);
  } catch (const CommError& error) {
    failures.keep(std::current_exception(), true);
    comm->abort(error.what());
  } catch (const std::exception& error) {
    failures.keep(std::current_exception(), false);
    comm->abort(error.what());
  } catch (...) {
    failures.keep(std::current_exception(), false);
    comm->abort("an exception that is no std::exception");
  }
}

}  // namespace

void run_ranks(int size, const std::function<void(std::shared_ptr<Communicator>)>& body,
               Options options, int threads_per_rank) {
  DKFAC_CHECK(threads_per_rank > 0, "[run_ranks] threads_per_rank is ", threads_per_rank,
              "; it must be > 0");
  auto ranks = make_in_process(size, options);
  Failures failures;
  std::vector<std::thread> threads;
  try {
    for (auto& comm : ranks) {
      threads.emplace_back(run_rank, std::move(comm), threads_per_rank, std::cref(body),
                           std::ref(failures));
    }
  } catch (const std::exception& error) {
    failures.keep(std::make_exception_ptr(Error(detail::concat(
                      "[run_ranks] the thread of rank ", threads.size(), " of ", size,
                      " did not start: ", error.what(), " (", thread_limits(),
                      ")"
                      "; use fewer ranks, or raise the limits on threads and memory"))),
                  false);
    ranks.clear();  // The ranks that run learn that the others have left.
  }
  for (std::thread& thread : threads) thread.join();
  failures.rethrow();
}

}  // namespace dkfac::comm
