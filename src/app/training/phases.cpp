#include "app/training/phases.h"

#include <algorithm>

#include "dkfac/core/error.h"
#include "dkfac/data/photo_data.h"

#include "app/run/agreement.h"
#include "app/training/state.h"

namespace dkfac::app {

namespace {

const data::DataSplits& data_of(const PhaseData& data, const std::vector<Phase>& phases,
                                std::size_t i) {
  if (data.size() == phases.size()) return *data[i];
  const bool one = data.size() == 1 && std::ranges::none_of(phases, [](const Phase& phase) {
                     return std::ranges::any_of(phase.changed, [](const std::string& key) {
                       return key.starts_with("data.");
                     });
                   });
  DKFAC_CHECK(one, "[train] there are data for ", data.size(), " of ", phases.size(),
              " phases, which change keys of [data]; give the data of each");
  return *data.front();
}

void check_alike(const data::DataSplits& now, const data::DataSplits& first, std::size_t number) {
  const auto same = [](const data::Dataset& a, const data::Dataset& b) {
    return a.channels == b.channels && a.classes == b.classes;
  };
  const auto names = [](const data::Dataset& a) {
    return a.photos ? a.photos->source->classes() : std::vector<std::string>();
  };
  DKFAC_CHECK(same(now.train, first.train) && same(now.test, first.test), "[train] phase ", number,
              " has images of ", now.train.channels, " channels and ", now.train.classes,
              " classes, the first phase ", first.train.channels, " and ", first.train.classes,
              "; phases may differ in height and width only");
  DKFAC_CHECK(now.train.count == first.train.count && now.test.count == first.test.count &&
                  names(now.train) == names(first.train),
              "[train] phase ", number, " has ", now.train.count, " training and ", now.test.count,
              " test samples, the first phase ", first.train.count, " and ", first.test.count,
              ", or classes of other names; data.path of a phase is for copies of the same images "
              "in another size");
}

}  // namespace

PhaseData one_for_all(const data::DataSplits& data) {
  return {std::shared_ptr<const data::DataSplits>(std::shared_ptr<void>(), &data)};
}

std::vector<PhasePlan> plan_phases(const Config& config, const PhaseData& data, int ranks) {
  const std::vector<Phase> phases = phases_of(config);
  std::vector<PhasePlan> plan;
  std::int64_t first_step = 0;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const data::DataSplits& splits = data_of(data, phases, i);
    check_alike(splits, data_of(data, phases, 0), i + 1);
    const data::SamplerOptions sampler = sampler_options(phases[i].config, splits.train, ranks);
    plan.push_back({phases[i], &splits, data::batches_per_epoch(sampler), first_step});
    first_step += plan.back().steps();
  }
  return plan;
}

const PhasePlan& plan_at(const std::vector<PhasePlan>& plan, std::int64_t epoch) {
  const auto after = std::ranges::upper_bound(
      plan, epoch, {}, [](const PhasePlan& p) { return p.phase.first_epoch; });
  return after == plan.begin() ? plan.front() : *std::prev(after);
}

void count_operations(nn::Model& model, std::vector<PhasePlan>& plan) {
  const Shape input = model.input();
  for (PhasePlan& p : plan) {
    try {
      model.set_input(image_of(p));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(detail::concat(error.what(), " (phase ", &p - plan.data() + 1, ")"));
    }
    p.image_flops = nn::training_flops(model);
  }
  model.set_input(input);
}

double work_of(const std::vector<PhasePlan>& plan, std::int64_t steps) {
  double work = 0;
  for (const PhasePlan& p : plan) {
    const std::int64_t done = std::clamp<std::int64_t>(steps - p.first_step, 0, p.steps());
    work += p.image_flops * static_cast<double>(p.images(done));
  }
  return work;
}

void enter_phase(TrainState& s, std::int64_t epoch) {
  const PhasePlan& next = plan_at(s.plan, epoch);
  if (&next == s.now) return;
  enter(s, "setup");
  const Shape image = s.model->input();
  s.now = &next;
  run_and_agree(*s.comm, s.position, [&] {
    s.model->set_input(image_of(next));
    make_loaders(s);
    // Captured passes belong to batches of the previous phase.
    if (s.graphed) {
      if (s.result.launches) s.launches_before = *s.result.launches;
      s.graphed.emplace(*s.model, &*s.timed, graph_options(s));
    }
  });
  const bool mixes = next.phase.config.regularize.mixup.any();
  if (!mixes || s.model->input() != image) s.regularizer.previous.global_batch = 0;
}

}  // namespace dkfac::app
