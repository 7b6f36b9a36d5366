#include "emulated/work_log.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace emulated {
namespace {

struct Log {
  std::atomic<bool> is_on = false;
  std::mutex mutex;
  std::vector<LoggedWork> work;
};

Log& log() {
  static auto* const one = new Log;
  return *one;
}

}  // namespace

WorkLog::WorkLog() {
  (void)take();
  log().is_on = true;
}
WorkLog::~WorkLog() { log().is_on = false; }

std::vector<LoggedWork> WorkLog::take() {
  const std::scoped_lock lock(log().mutex);
  return std::exchange(log().work, {});
}

bool logs_work() { return log().is_on; }

void log_work(LoggedWork work) {
  const std::scoped_lock lock(log().mutex);
  log().work.push_back(std::move(work));
}

}  // namespace emulated
