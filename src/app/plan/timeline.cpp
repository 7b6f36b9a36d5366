#include "app/plan/timeline.h"

#include <algorithm>

#include "dkfac/core/error.h"

#include "core/shared/index.h"

namespace dkfac::app::planning {

const char* name_of(Phase phase) {
  constexpr std::array<const char*, kPhases> kNames{"forward", "backward", "statistics",
                                                    "reduce",  "inverses", "precondition",
                                                    "update",  "gather"};
  return kNames.at(static_cast<std::size_t>(phase));
}

Timeline simulate(const std::vector<Task>& tasks) {
  Timeline line;
  std::array<int, kLanes> last{-1, -1};
  std::vector<int> cause(tasks.size(), -1);  // The task whose end was waited for.
  const auto end_of = [&](int i) { return i < 0 ? 0 : line.ends[index_of(i)]; };
  int final = -1;
  for (int i = 0; i < std::ssize(tasks); ++i) {
    const Task& task = tasks[index_of(i)];
    const auto lane = static_cast<std::size_t>(task.lane);
    DKFAC_CHECK(task.after < i, "[plan] task ", i, " waits for task ", task.after,
                ", which is not before it");
    cause[index_of(i)] = end_of(task.after) > end_of(last.at(lane)) ? task.after : last.at(lane);
    line.starts.push_back(end_of(cause[index_of(i)]));
    line.ends.push_back(line.starts.back() + task.seconds);
    line.busy.at(lane) += task.seconds;
    last.at(lane) = i;
    if (line.ends.back() >= line.seconds) {
      line.seconds = line.ends.back();
      final = i;
    }
  }
  for (int i = final; i >= 0; i = cause[index_of(i)])
    line.phases.at(static_cast<std::size_t>(tasks[index_of(i)].phase)) +=
        tasks[index_of(i)].seconds;
  return line;
}

}  // namespace dkfac::app::planning
