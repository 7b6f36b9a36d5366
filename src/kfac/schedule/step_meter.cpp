#include "kfac/schedule/step_meter.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <span>
#include <sys/resource.h>
#include <utility>

namespace dkfac::kfac {
namespace {

constexpr std::int64_t kStart = 20;
constexpr int kEnough = 5;

/// Of all threads. CLOCK_PROCESS_CPUTIME_ID goes on in ticks of milliseconds where a limit of
/// processor time is set, as by `ulimit -t`.
double processor_time() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What meters on this thread have counted as K-FAC's own, which are the passes of none.
double& own_total() {
  static thread_local double seconds = 0;
  return seconds;
}

StepClock& clock_of_tests() {
  static StepClock clock = nullptr;
  return clock;
}

std::span<const MeteredStep> steps_of(const MeteredSteps& kind) {
  return {kind.steps.data(), static_cast<std::size_t>(kind.count)};
}

/// Median of a quantity of the steps of up to three kinds; 0 of none.
template <class Of>
double median(std::initializer_list<std::span<const MeteredStep>> kinds, const Of& of) {
  std::array<double, std::size_t{3} * MeteredSteps::kKept> values{};
  std::size_t count = 0;
  for (const auto& steps : kinds)
    for (const MeteredStep& step : steps) values[count++] = of(step);
  if (count == 0) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(values.begin(), middle, values.begin() + static_cast<std::ptrdiff_t>(count));
  return *middle;
}

/// What a step takes beside statistics and inverses, as far as the host's clock separates them.
double remainder(const MeteredStep& step) {
  return step.of(StepPart::passes) + step.of(StepPart::apply);
}

const MeteredSteps& kind_of(const StepMeter& meter, bool statistics, bool inverses) {
  return meter.kinds[(statistics ? 1U : 0U) + (inverses ? 2U : 0U)];
}

/// The kind of steps that take least: those without a refresh, unless these are of another time.
std::span<const MeteredStep> plainest(const StepMeter& meter) {
  std::span<const MeteredStep> found;
  for (const MeteredSteps& kind : meter.kinds)
    if (kind.count >= kEnough &&
        (found.empty() || median({steps_of(kind)}, remainder) < median({found}, remainder)))
      found = steps_of(kind);
  return found;
}

}  // namespace

void replace_step_clock(StepClock clock) { clock_of_tests() = clock; }

StepMeter make_step_meter(bool asynchronous) {
  StepMeter meter;
  meter.asynchronous = asynchronous;
  meter.clock = asynchronous ? wall_time : processor_time;
  if (clock_of_tests() != nullptr) meter.clock = clock_of_tests();
  meter.own_since = own_total();
  return meter;
}

StepPart enter_part(StepMeter& meter, StepPart part) {
  const double now = meter.clock();
  double seconds = now - meter.since;
  // What the host does for a device is done while that works on something else.
  const StepPart spent = meter.asynchronous ? StepPart::passes : meter.part;
  if (spent != StepPart::passes)
    own_total() += seconds;
  else if (!meter.asynchronous)
    seconds -= own_total() - meter.own_since;
  meter.step.seconds[static_cast<std::size_t>(spent)] += seconds;
  meter.since = now;
  meter.own_since = own_total();
  return std::exchange(meter.part, part);
}

void count_own(StepMeter& meter, double seconds) {
  meter.step.seconds[static_cast<std::size_t>(StepPart::passes)] -= seconds;
  meter.step.seconds[static_cast<std::size_t>(StepPart::apply)] += seconds;
  if (meter.asynchronous) return;
  own_total() += seconds;
  meter.own_since += seconds;
}

void end_metered_step(StepMeter& meter, const StepKind& kind, double applied) {
  enter_part(meter, meter.part);
  count_own(meter, applied);
  ++meter.steps;
  const bool rebuilt = kind.inverses > 0;
  if (meter.steps > kStart || (meter.steps > 1 && rebuilt)) {
    MeteredSteps& to = meter.steps > kStart
                           ? meter.kinds[(kind.statistics ? 1U : 0U) + (rebuilt ? 2U : 0U)]
                           : meter.early;
    meter.step.rebuilt = kind.inverses;
    to.steps[static_cast<std::size_t>(to.next)] = meter.step;
    to.next = (to.next + 1) % MeteredSteps::kKept;
    to.count = std::min(to.count + 1, MeteredSteps::kKept);
  }
  meter.step = {};
}

void drop_metered_step(StepMeter& meter) {
  enter_part(meter, meter.part);
  meter.step = {};
}

void restart(StepMeter& meter) {
  meter.forgotten = meter.steps;
  for (MeteredSteps& kind : std::span(meter.kinds).subspan(1)) kind = {};
  meter.early = {};
}

bool is_measured(const StepMeter& meter, int statistics_interval, bool inverses) {
  const int with_both = kind_of(meter, true, true).count;
  return (kind_of(meter, false, false).count >= kEnough || statistics_interval == 1) &&
         kind_of(meter, true, false).count + with_both >= kEnough &&
         (!inverses ||
          kind_of(meter, false, true).count + with_both + meter.early.count >= kEnough);
}

StepCosts costs_of(const StepMeter& meter) {
  const auto plain = plainest(meter), both = steps_of(kind_of(meter, true, true));
  const auto statistics = steps_of(kind_of(meter, true, false));
  const auto inverses = steps_of(kind_of(meter, false, true)), early = steps_of(meter.early);
  const double usual = median({plain}, remainder);
  const auto more = [usual](double seconds) { return std::max(0.0, seconds - usual); };
  StepCosts costs;
  costs.passes = median({plain}, [](const MeteredStep& s) { return s.of(StepPart::passes); });
  costs.apply = median({plain}, [](const MeteredStep& s) { return s.of(StepPart::apply); });
  // A device's remainder contains inverses. Hooks of the caller and the exchange are counted too,
  // as what these steps take longer.
  const bool mixed = !meter.asynchronous || statistics.size() < both.size();
  const auto with_both = mixed ? both : std::span<const MeteredStep>();
  costs.statistics = median({statistics, with_both},
                            [](const MeteredStep& s) { return s.of(StepPart::statistics); }) +
                     more(median({statistics, with_both}, remainder));
  if (meter.asynchronous) {
    const bool apart = inverses.size() >= kEnough;
    const double other = apart ? 0 : costs.statistics;
    costs.inverses =
        median({apart ? inverses : both, apart ? std::span<const MeteredStep>() : early},
               [&](const MeteredStep& s) { return more(remainder(s) - other) / s.rebuilt; });
  } else {
    costs.inverses = median({inverses, both, early}, [](const MeteredStep& s) {
      return s.of(StepPart::inverses) / s.rebuilt;
    });
  }
  return costs;
}

}  // namespace dkfac::kfac
