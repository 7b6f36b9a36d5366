#include "kfac/curvature/interval_chooser.h"

#include <cmath>
#include <functional>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/saved_state.h"
#include "support/tensors.h"

// Runs by a clock that advances by 1 whenever it is read, and by what the passes of a step take.
namespace dkfac::testing {
namespace {

thread_local double read_time = 0;

class CountingClock {
 public:
  CountingClock() {
    kfac::replace_step_clock([] { return read_time += 1; });
  }
  ~CountingClock() { kfac::replace_step_clock(nullptr); }
  CountingClock(const CountingClock&) = delete;
  CountingClock& operator=(const CountingClock&) = delete;
};

constexpr double kCheap = 1e4, kDear = 1;  ///< Passes beside which K-FAC is nothing, and much.

struct BudgetRun {
  std::vector<double> directions;
  std::vector<kfac::StepReport> choices;  ///< Steps that chose.
  kfac::StepReport last;
  SavedState state;
};

kfac::CurvatureOptions by_budget() {
  kfac::CurvatureOptions options;
  options.dtype = DType::f64;
  options.refresh.statistics_interval = options.refresh.inverse_interval = 0;
  return options;
}

struct Course {
  kfac::CurvatureOptions options = by_budget();
  double passes = kCheap;  ///< Of the steps on rank 0.
  double own = 0;          ///< Of them, what the caller counts to K-FAC.
  int from = 0, to = 200;
  const std::vector<SavedState>* before = nullptr;
  std::function<void(kfac::Preconditioner&, int step)> before_step = nullptr;
  std::function<bool(int step)> rejects = nullptr;
};

/// Both sides of a linear layer, and its gradient, of one step on one rank.
struct StepData {
  StepData(int step, int rank) {
    const auto fill = [&](std::vector<double>& values, double phase) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = std::sin(phase + 1.3 * step + 0.7 * rank + 0.9 * static_cast<double>(i * i));
    };
    fill(x, 0);
    fill(dy, 1);
    for (std::size_t i = 0; i < grad.size(); ++i)
      grad[i] = std::cos(0.3 * step + static_cast<double>(i));  // Equal on all ranks.
  }
  std::vector<double> x = std::vector<double>(12), dy = std::vector<double>(8),
                      grad = std::vector<double>(6);
};

BudgetRun run_rank(const std::shared_ptr<comm::Communicator>& comm, const Course& course) {
  kfac::Preconditioner kfac(comm, course.options);
  const LayerId fc = kfac.add_layer("fc", LinearSpec{.in = 3, .out = 2, .bias = false});
  if (course.before != nullptr) {
    Loader loader(*course.before, comm->rank());
    kfac.visit_state(loader);
  }
  BudgetRun run;
  for (int step = course.from; step < course.to; ++step) {
    if (course.before_step) course.before_step(kfac, step);
    StepData data(step, comm->rank());
    read_time += comm->rank() == 0 ? course.passes : kDear;  // Rank 0 decides.
    if (kfac.wants_statistics()) {
      kfac.record_input(fc, view_of(data.x.data(), {4, 3}));
      kfac.record_grad_output(fc, view_of(data.dy.data(), {4, 2}));
    }
    if (comm->rank() == 0) kfac.count_own(course.own);
    const kfac::LayerGrad grad{fc, view_of(data.grad.data(), {2, 3}), {}};
    const StepFlags flags{.loss_nonfinite = course.rejects && course.rejects(step)};
    run.last = kfac.step({&grad, 1}, Stream::cpu(), {.flags = flags});
    run.last.statistics = {};  // Of the object, which does not outlive this.
    if (run.last.intervals_chosen) run.choices.push_back(run.last);
    run.directions.insert(run.directions.end(), data.grad.begin(), data.grad.end());
  }
  Saver saver;
  kfac.visit_state(saver);
  run.state = std::move(saver.state);
  return run;
}

std::vector<BudgetRun> run_all(int ranks, const Course& course) {
  const CountingClock clock;
  std::vector<BudgetRun> runs(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    runs[static_cast<std::size_t>(comm->rank())] = run_rank(comm, course);
  });
  for (const BudgetRun& run : runs) EXPECT_EQ(run.directions, runs.front().directions);
  return runs;
}

std::vector<SavedState> states_of(const std::vector<BudgetRun>& runs) {
  std::vector<SavedState> states;
  for (const BudgetRun& run : runs) states.push_back(run.state);
  return states;
}

/// The directions of the steps from `from` on.
std::vector<double> tail(const BudgetRun& run, int from) {
  return {run.directions.begin() + 6 * from, run.directions.end()};
}

TEST(IntervalChooser, ChoosesOnceByRankZero) {
  const struct {
    double passes;
    int statistics, inverses;
  } all[] = {{kCheap, 1, 1}, {kDear, 20, 100}};
  for (const auto& c : all)
    for (const int ranks : {1, 2})
      for (const BudgetRun& run : run_all(ranks, {.passes = c.passes, .to = 300})) {
        ASSERT_EQ(run.choices.size(), 1U) << ranks;
        const kfac::StepReport& chosen = run.choices.front();
        EXPECT_EQ(chosen.step, 80) << "the sixth rebuild after that of the first step";
        EXPECT_EQ(chosen.statistics_interval, c.statistics);
        EXPECT_EQ(chosen.inverse_interval, c.inverses);
        EXPECT_EQ(chosen.overhead <= 0.25, c.passes == kCheap);
        EXPECT_GT(chosen.overhead, 0);
        EXPECT_TRUE(contains(chosen.brief(), "from now on statistics every"));
        EXPECT_EQ(run.last.statistics_interval, c.statistics);
        EXPECT_EQ(run.last.inverse_interval, c.inverses);
      }
}

TEST(IntervalChooser, CountsWhatTheCallerDoesForIt) {
  for (const int ranks : {1, 2})
    for (const BudgetRun& run : run_all(ranks, {.own = 0.9 * kCheap, .to = 100})) {
      ASSERT_EQ(run.choices.size(), 1U) << ranks;
      const kfac::StepReport& chosen = run.choices.front();
      EXPECT_EQ(chosen.statistics_interval, 20) << "1 where it is not counted, see above";
      EXPECT_EQ(chosen.inverse_interval, 100);
      // 0.9 / 0.1; the clock has gone on by some dozens of the 1e3 of the passes in the library.
      EXPECT_NEAR(chosen.fixed_overhead, 9, 0.5);
      EXPECT_GT(chosen.overhead, chosen.fixed_overhead);
      EXPECT_LT(chosen.overhead, chosen.fixed_overhead + 0.25);
    }
  kfac::Preconditioner kfac(comm::make_self(), by_budget());
  for (const double seconds : {-1.0, std::nan("")})
    EXPECT_TRUE(contains(message_of([&] { kfac.count_own(seconds); }), "finite and >= 0"));
}

TEST(IntervalChooser, CountsPassesWhoseRecordsAreDropped) {
  const double kLong = 1e2;  // Of the passes of another optimizer's step; K-FAC's own take kDear.
  const auto told = [&](bool between, bool drops) {
    Course course{.passes = kDear, .to = 100};
    course.before_step = [=](kfac::Preconditioner& kfac, int) {
      if (between) read_time += kLong;
      if (drops) kfac.step({}, Stream::cpu(), {.flags = {.data_error = true}});
    };
    const BudgetRun run = run_all(1, course).front();
    EXPECT_EQ(run.choices.size(), 1U);
    return run.choices.empty() ? 0 : run.choices.front().fixed_overhead;
  };
  const double alone = told(false, false), with_both = told(true, false);
  EXPECT_GT(alone, 2 * with_both);
  // Dropping reads the clock, which goes on by 1, some times more.
  EXPECT_NEAR(told(true, true), with_both, 0.1 * alone);
}

TEST(IntervalChooser, IsRepeatedBySettingWhatItChose) {
  const BudgetRun chosen = run_all(1, {}).front();
  Course fixed;
  fixed.options.refresh.statistics_interval = 10;
  fixed.options.refresh.inverse_interval = 50;
  const BudgetRun other = run_all(1, fixed).front();
  fixed.before_step = [&](kfac::Preconditioner& kfac, int step) {
    if (step == chosen.choices.front().step)
      kfac.set_curvature({.statistics_interval = 1, .inverse_interval = 1});
  };
  EXPECT_EQ(run_all(1, fixed).front().directions, chosen.directions);
  EXPECT_NE(other.directions, chosen.directions) << "control";
}

TEST(IntervalChooser, ReplaysTheChoiceOfALoadedStateAndMeasuresNothing) {
  for (const int ranks : {1, 2}) {
    const std::vector<BudgetRun> whole = run_all(ranks, {.to = 400});
    const std::vector<SavedState> saved = states_of(run_all(ranks, {.to = 100}));
    // By what is measured now, others would be chosen.
    const std::vector<BudgetRun> resumed =
        run_all(ranks, {.passes = kDear, .from = 100, .to = 400, .before = &saved});
    EXPECT_EQ(resumed.front().directions, tail(whole.front(), 100)) << ranks;
    EXPECT_TRUE(resumed.front().choices.empty());
    EXPECT_EQ(resumed.front().last.statistics_interval, 1);
    // Saved before the choice, it is made by what is measured then.
    const std::vector<SavedState> early = states_of(run_all(ranks, {.to = 50}));
    const std::vector<BudgetRun> later =
        run_all(ranks, {.passes = kDear, .from = 50, .to = 500, .before = &early});
    ASSERT_EQ(later.front().choices.size(), 1U) << "control";
    EXPECT_EQ(later.front().last.statistics_interval, 20);
  }
}

TEST(IntervalChooser, ChoosesAgainWhereCostsChangeAndWhereAsked) {
  Course course{.to = 420};
  double* const passes = &course.passes;
  course.before_step = [passes](kfac::Preconditioner&, int step) {
    if (step == 200) *passes = kDear;
  };
  const BudgetRun changed = run_all(1, course).front();
  ASSERT_EQ(changed.choices.size(), 2U);
  EXPECT_EQ(changed.choices.back().statistics_interval, 20);
  course = {.to = 420};
  course.before_step = [](kfac::Preconditioner& kfac, int step) {
    if (step == 200) kfac.set_curvature({.statistics_interval = 0});
  };
  const BudgetRun asked = run_all(1, course).front();
  ASSERT_EQ(asked.choices.size(), 2U);
  EXPECT_EQ(asked.choices.back().statistics_interval, 1);
  // Setting both ends it.
  course.before_step = [](kfac::Preconditioner& kfac, int step) {
    if (step == 40) kfac.set_curvature({.statistics_interval = 3, .inverse_interval = 6});
  };
  const BudgetRun set = run_all(1, course).front();
  EXPECT_TRUE(set.choices.empty());
  EXPECT_EQ(set.last.inverse_interval, 6);
}

TEST(IntervalChooser, WaitsForAStepThatIsAccepted) {
  Course course{.to = 90};
  course.rejects = [](int step) { return step >= 79 && step < 82; };  // The rebuild of step 80.
  const BudgetRun run = run_all(2, course).front();
  ASSERT_EQ(run.choices.size(), 1U);
  EXPECT_EQ(run.choices.front().step, 83);
}

TEST(IntervalChooser, GoesWithOtherOptions) {
  const struct {
    const char* what;
    std::function<void(kfac::CurvatureOptions&)> set;
    int statistics, inverses;
  } all[] = {
      {"ekfac",
       [](auto& o) {
         o.inverse.method = kfac::InverseMethod::ekfac;
         o.distribution.grad_worker_fraction = 1;
       },
       1, 5},
      {"staggered", [](auto& o) { o.refresh.stagger_inverses = true; }, 1, 1},
      {"delayed", [](auto& o) { o.refresh.delay_inverses = true; }, 1, 1},
      {"no early refreshes", [](auto& o) { o.refresh.early_refreshes = false; }, 1, 1},
      {"statistics given", [](auto& o) { o.refresh.statistics_interval = 3; }, 3, 3},
      {"inverses given", [](auto& o) { o.refresh.inverse_interval = 20; }, 1, 20},
      {"adaptive", [](auto& o) { o.refresh.staleness = kfac::Staleness::adaptive; }, 1, 1},
  };
  for (const auto& c : all) {
    Course course{.to = 320};
    c.set(course.options);
    const BudgetRun run = run_all(2, course).front();
    EXPECT_EQ(run.choices.size(),
              course.options.refresh.staleness == kfac::Staleness::fixed ? 1 : 0)
        << c.what;
    EXPECT_EQ(run.last.statistics_interval, c.statistics) << c.what;
    EXPECT_EQ(run.last.inverse_interval, c.inverses) << c.what;
  }
}

TEST(IntervalChooser, RefusesABudgetWithNothingToChoose) {
  kfac::CurvatureOptions options;
  options.refresh.statistics_interval = options.refresh.inverse_interval = 5;
  options.refresh.overhead = 0.5;
  EXPECT_TRUE(contains(message_of([&] { kfac::Preconditioner kfac(comm::make_self(), options); }),
                       "no interval is left to choose"));
  options.refresh.inverse_interval = 0;
  EXPECT_EQ(message_of([&] { kfac::Preconditioner kfac(comm::make_self(), options); }), "");
  comm::run_ranks(2, [&](std::shared_ptr<comm::Communicator> comm) {
    kfac::CurvatureOptions mine = by_budget();
    if (comm->rank() == 1) mine.refresh.statistics_interval = 10;  // What is in force at first.
    kfac::Preconditioner kfac(comm, mine);
    EXPECT_TRUE(contains(message_of([&] { kfac.prepare(); }), "intervals"));
  });
}

}  // namespace
}  // namespace dkfac::testing
