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

Log& the_log() {
  static auto* const one = new Log;
  return *one;
}

}  // namespace

WorkLog::WorkLog() {
  (void)take();
  the_log().is_on = true;
}
WorkLog::~WorkLog() { the_log().is_on = false; }

std::vector<LoggedWork> WorkLog::take() {
  const std::scoped_lock lock(the_log().mutex);
  return std::exchange(the_log().work, {});
}

bool logs_work() { return the_log().is_on; }

void log_work(LoggedWork work) {
  if (!logs_work()) return;
  const std::scoped_lock lock(the_log().mutex);
  the_log().work.push_back(std::move(work));
}

}  // namespace emulated
