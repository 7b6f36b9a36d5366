#pragma once

#include <string>
#include <vector>

namespace emulated {

/// A launch: a kernel of the library by the type of its functor, or a call of cuBLAS, cuDNN or the
/// Cholesky functions of cuSOLVER, for which operations and bytes are known.
struct LoggedWork {
  std::string
      name;  ///< As "dkfac::nn::cuda::Normalize<...>", "cublas", "cudnn data", "cusolver potrf".
  double flop = 0;   ///< Two for a multiply-add of a product, a solve or a factorisation.
  double bytes = 0;  ///< Of the operands and results, each counted once.
};

/// Log of the launches of all threads during its life. At most one at a time.
class WorkLog {
 public:
  WorkLog();
  ~WorkLog();
  WorkLog(const WorkLog&) = delete;
  WorkLog& operator=(const WorkLog&) = delete;
  [[nodiscard]] std::vector<LoggedWork> take();  ///< Returns and removes what it has so far.
};

/// Adds a call of an emulated library to the log, if there is one.
void log_work(LoggedWork work);
/// Whether there is one, for work that is expensive to describe.
[[nodiscard]] bool logs_work();

}  // namespace emulated
