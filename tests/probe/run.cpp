#include "probe/run.h"

#include <mutex>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"

#include "probe/trainee.h"
#include "support/host_waits.h"
#include "support/saved_state.h"

namespace dkfac::probe {
namespace {

/// What one part of a run passes to the next.
struct Saved {
  std::mutex mutex;
  std::vector<testing::SavedState> ranks;
  std::vector<std::vector<double>> parameters;
};

/// Steps [from, to).
struct Part {
  int from = 0, to = 0;
  const Saved* before = nullptr;
  Saved* after = nullptr;
};

void load(Trainee& trainee, const Saved& saved, int rank) {
  std::size_t i = 0;
  for (Parameter& p : trainee.parameters()) put(trainee.ctx(), saved.parameters.at(i++), p.value);
  trainee.ctx().stream().synchronize();
  testing::Loader loader(saved.ranks, rank);
  trainee.visit_state(loader);
}

void save(Trainee& trainee, Saved& saved, const comm::Communicator& comm) {
  testing::Saver saver;
  trainee.visit_state(saver);
  const std::lock_guard lock(saved.mutex);
  saved.ranks.resize(static_cast<std::size_t>(comm.size()));
  saved.ranks[static_cast<std::size_t>(comm.rank())] = std::move(saver.state);
  saved.parameters.clear();
  for (Parameter& p : trainee.parameters()) saved.parameters.push_back(get(trainee.ctx(), p.value));
}

void write_parameters(Trainee& trainee, Log& log, int step) {
  Context host;
  for (Parameter& p : trainee.parameters()) {
    Tensor here = Tensor::empty(host, p.value.shape(), p.value.dtype());
    ops::copy(trainee.ctx(), p.value, here);
    trainee.ctx().stream().synchronize();
    log.bits(p.name + detail::concat("@", step), text_of(here.view()));
  }
}

StepPlan plan_of(const Configuration& c, int step) {
  StepPlan plan;
  plan.lr = step < 10 ? 0.05 : 0.02;
  plan.micro_batches = c.curvature.statistics.micro_batches;
  if (c.plan) c.plan(plan, step);
  return plan;
}

/// Rank 0 counts the waits of all ranks: they are one process.
kfac::StepReport counted_step(Trainee& trainee, const StepPlan& plan, comm::Communicator& comm,
                              Log& log) {
  comm.barrier("before the step");
  const std::int64_t before = testing::host_waits();
  comm.barrier("counted");
  const kfac::StepReport report = trainee.step(plan);
  comm.barrier("after the step");
  const std::int64_t waits = testing::host_waits() - before;
  if (comm.rank() == 0) log.next("waits", "host", detail::concat(waits));
  comm.barrier("counted");
  return report;
}

void run_steps(const Configuration& c, const Part& part, Trainee& trainee, comm::Communicator& comm,
               Log& log) {
  std::vector<std::string> names;
  for (const ProbeLayer& layer : trainee.layers()) names.push_back(layer.name);
  for (int step = part.from; step < part.to; ++step) {
    const StepPlan plan = plan_of(c, step);
    trainee.make_data(plan, step);
    log.next(counted_step(trainee, plan, comm, log), names);
    const int done = step + 1;
    if (done == 1 || done == 3 || done % 10 == 0 || done == part.to)
      write_parameters(trainee, log, done);
  }
}

void run_part(const Configuration& c, const Part& part, Writer& writer) {
  comm::run_ranks(c.ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    Log log(writer, c.name + (part.after != nullptr ? "/saved" : ""), comm->rank());
    try {
      Trainee trainee(c, comm);
      if (part.before != nullptr) load(trainee, *part.before, comm->rank());
      run_steps(c, part, trainee, *comm, log);
      if (part.after != nullptr) save(trainee, *part.after, *comm);
      StateWriter states(log);
      trainee.visit_state(states);
    } catch (const NumericError&) {  // Of every rank: some runs are meant to end so.
      log.next("reports", "ended", "NumericError");
    }
    log.end();
  });
}

}  // namespace

void run(const Configuration& c, Writer& writer) {
  if (!c.restart) return run_part(c, {.to = c.steps}, writer);
  const Restart& restart = *c.restart;
  Saved saved;
  run_part(c, {.to = restart.step, .after = &saved}, writer);
  Configuration rest = c;
  rest.ranks = restart.ranks;
  rest.device = restart.device;
  rest.curvature.distribution.grad_worker_fraction = restart.grad_worker_fraction;
  run_part(rest, {.from = restart.step, .to = c.steps, .before = &saved}, writer);
}

}  // namespace dkfac::probe
