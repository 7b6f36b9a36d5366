#pragma once

#include <array>
#include <cstdint>

/// What the parts of a step cost on this rank (docs/math.md, "Intervals from a budget"). Plain
/// state of fixed size, and functions of it.
namespace dkfac::kfac {

/// Returns seconds from some start.
using StepClock = double (*)();

/// Parts of a step. On a device, where work goes on after the call that enqueued it, the passes
/// contain statistics and rebuilds, which are what steps with them take longer.
enum class StepPart : std::uint8_t {
  passes,      ///< All that is not done here, on a host without K-FAC of other models.
  apply,       ///< What every step does: directions, and the exchange of flags.
  statistics,  ///< Records and averages.
  inverses
};
inline constexpr std::size_t kStepParts = 4;

/// What a step did.
struct StepKind {
  bool statistics = false;
  double inverses = 0;  ///< Part of the work of rebuilding all inverses, in [0, 1].
};

/// Medians over steps, in seconds: of the passes and of applying inverses in a step that refreshes
/// nothing, of statistics in a step that refreshes them, and of rebuilding all inverses.
struct StepCosts {
  double passes = 0, apply = 0, statistics = 0, inverses = 0;
};

struct MeteredStep {
  std::array<double, kStepParts> seconds{};
  double rebuilt = 0;  ///< StepKind::inverses
  [[nodiscard]] double of(StepPart part) const { return seconds[static_cast<std::size_t>(part)]; }
};

/// The newest steps of one kind.
struct MeteredSteps {
  static constexpr int kKept = 32;
  std::array<MeteredStep, kKept> steps;
  int count = 0, next = 0;
};

struct StepMeter {
  bool asynchronous = false;  ///< Work goes on after the call: a device.
  StepClock clock = nullptr;
  StepPart part = StepPart::passes;  ///< What is done now.
  double since = 0;
  double own_since = 0;        ///< What K-FAC of all models had taken then.
  MeteredStep step;            ///< So far.
  std::int64_t steps = 0;      ///< Metered so far, those of the start included.
  std::int64_t forgotten = 0;  ///< Of them, those before restart().
  std::array<MeteredSteps, 4> kinds;
  MeteredSteps early;  ///< Steps of the start with inverses, of which these alone count.
};

/// The clock: processor time of the process, that of all its threads, on the host; else the time
/// between the waits of two steps.
[[nodiscard]] StepMeter make_step_meter(bool asynchronous);
/// Meters made from now on have this clock; null: that of make_step_meter(). For tests.
void replace_step_clock(StepClock clock);

/// Ends a part of the step and begins another; returns the one that has ended.
StepPart enter_part(StepMeter& meter, StepPart part);
/// Counts seconds of this step, which the clock gives to the passes, to StepPart::apply: what a
/// caller does for K-FAC outside of the library.
void count_own(StepMeter& meter, double seconds);
/// Ends a step of this kind. Of the first 20, which prepare what later ones use again, rebuilds
/// alone count, as they are rare later; those of the first do not, nor do statistics beside them.
/// applied: as count_own(), measured on the device.
void end_metered_step(StepMeter& meter, const StepKind& kind, double applied = 0);
/// Forgets what the step has taken so far: it was rejected.
void drop_metered_step(StepMeter& meter);
/// Forgets the steps so far, but not that the start is over, nor those that refresh nothing: where
/// there are none any more, they tell what the others take longer.
void restart(StepMeter& meter);
/// Whether medians are of 5 steps of each kind at least. statistics_interval: of 1 there is no step
/// without statistics. inverses: whether there are any.
[[nodiscard]] bool is_measured(const StepMeter& meter, int statistics_interval, bool inverses);
/// Of is_measured() meters.
[[nodiscard]] StepCosts costs_of(const StepMeter& meter);

/// Counts its lifetime to a part of the step.
class Metered {
 public:
  Metered(StepMeter& meter, StepPart part) : meter_(meter), before_(enter_part(meter, part)) {}
  ~Metered() { enter_part(meter_, before_); }
  Metered(const Metered&) = delete;
  Metered& operator=(const Metered&) = delete;

 private:
  StepMeter& meter_;
  StepPart before_;
};

}  // namespace dkfac::kfac
