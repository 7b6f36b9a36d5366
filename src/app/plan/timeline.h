#pragma once

#include <array>
#include <cstddef>
#include <vector>

/// A discrete simulation of one step: tasks that follow each other on two streams of a rank, and
/// wait for tasks of the other.
namespace dkfac::app::planning {

enum class Lane : unsigned char { compute, links };
inline constexpr std::size_t kLanes = 2;

/// What a task is part of.
enum class Phase : unsigned char {
  forward,
  backward,
  statistics,  ///< And their running averages.
  reduce,      ///< Statistics and gradients to those that need them.
  inverses,
  precondition,  ///< Directions of K-FAC and Muon.
  update,
  gather  ///< Inverses to workers, weights to all.
};
inline constexpr std::size_t kPhases = 8;
[[nodiscard]] const char* name_of(Phase phase);

struct Task {
  Lane lane = Lane::compute;
  Phase phase = Phase::forward;
  double seconds = 0;
  int after = -1;  ///< A task of the other lane that has to end before; -1: none.
};

struct Timeline {
  std::vector<double> starts, ends;
  double seconds = 0;                    ///< End of the last task.
  std::array<double, kLanes> busy{};     ///< Sum of the tasks of a lane.
  std::array<double, kPhases> phases{};  ///< Parts of the longest chain of tasks: their sum is
                                         ///< `seconds`, so what is hidden behind others is not in.
};
/// Runs the tasks of each lane in their order, each as soon as the one before it and `after` have
/// ended. `after` names an earlier task.
[[nodiscard]] Timeline simulate(const std::vector<Task>& tasks);

}  // namespace dkfac::app::planning
