#include "app/config/table.h"

namespace dkfac::app {

namespace {

void add_fisher(KeyTable& t) {
  t.choice<Fisher>("optimizer.fisher", DKFAC_FIELD(optimizer.fisher),
                   {{"empirical", Fisher::empirical}, {"monte_carlo", Fisher::monte_carlo}},
                   "curvature from the gradients of the training loss, or of labels sampled from "
                   "the model")
      .where("optimizer.type", {"kfac"});
}

void add_damping_schedule(KeyTable& t) {
  const std::string schedule = "optimizer.damping_schedule";
  t.choice<DampingSchedule>(schedule, DKFAC_FIELD(optimizer.damping_schedule),
                            {{"constant", DampingSchedule::constant},
                             {"warmup", DampingSchedule::warmup},
                             {"piecewise", DampingSchedule::piecewise}},
                            "how lambda changes over the run")
      .where("optimizer.type", {"kfac"});
  t.real("optimizer.damping_initial", DKFAC_FIELD(optimizer.damping_initial), above(0),
         "lambda of the first step, which changes to optimizer.damping")
      .where(schedule, {"warmup"});
  t.integer("optimizer.damping_warmup_steps", DKFAC_FIELD(optimizer.damping_warmup_steps),
            at_least(0), "steps of that change")
      .where(schedule, {"warmup"});
  t.knots("optimizer.damping_knots", DKFAC_FIELD(optimizer.damping_knots),
          "[[epoch, lambda], ...], linear in between")
      .where(schedule, {"piecewise"});
}

void add_interval_schedule(KeyTable& t) {
  const std::string schedule = "optimizer.interval_schedule";
  t.choice<IntervalSchedule>(
       schedule, DKFAC_FIELD(optimizer.interval_schedule),
       {{"constant", IntervalSchedule::constant}, {"ramp", IntervalSchedule::ramp}},
       "whether the intervals increase from smaller ones")
      .where("optimizer.staleness", {"fixed"});
  t.integer("optimizer.first_statistics_interval", DKFAC_FIELD(optimizer.first_statistics_interval),
            count_from(1), "statistics interval at the first step")
      .where(schedule, {"ramp"});
  t.integer("optimizer.first_inverse_interval", DKFAC_FIELD(optimizer.first_inverse_interval),
            count_from(1), "inverse interval at the first step")
      .where(schedule, {"ramp"});
  t.integer("optimizer.interval_ramp_steps", DKFAC_FIELD(optimizer.interval_ramp_steps),
            at_least(0), "steps until both reach their final value")
      .where(schedule, {"ramp"});
}

}  // namespace

void add_curvature_keys(KeyTable& t) {
  add_fisher(t);
  add_damping_schedule(t);
  add_interval_schedule(t);
}

}  // namespace dkfac::app
