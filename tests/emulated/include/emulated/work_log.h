#pragma once

#include <string>
#include <vector>

namespace emulated {

/// A launch: a kernel of the library by the type of its functor, or a call of cuBLAS or cuDNN, for
/// which operations and bytes are known.
struct LoggedWork {
  std::string name;  ///< As "dkfac::nn::cuda::Normalize<...>", "cublas", or "cudnn data".
  double flop = 0;   ///< Of products, two for a multiply-add.
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

/// Whether there is a log. Emulated libraries add their calls to it.
[[nodiscard]] bool logs_work();
void log_work(LoggedWork work);

}  // namespace emulated
