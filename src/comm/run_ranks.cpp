#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

namespace dkfac::comm {

namespace {

/// The exception of the rank that failed first. Kept before the group is aborted, so that the
/// failures which that abort causes come later.
class FirstFailure {
 public:
  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
  }
  void rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

void run_rank(std::shared_ptr<Communicator> comm, int threads,
              const std::function<void(std::shared_ptr<Communicator>)>& body,
              FirstFailure& failure) {
  try {
    set_threads(threads);
    body(comm);
  } catch (const std::exception& error) {
    failure.keep(std::current_exception());
    comm->abort(error.what());
  } catch (...) {
    failure.keep(std::current_exception());
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
  for (auto& comm : ranks) {
    threads.emplace_back(run_rank, std::move(comm), threads_per_rank, std::cref(body),
                         std::ref(failure));
  }
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace dkfac::comm
