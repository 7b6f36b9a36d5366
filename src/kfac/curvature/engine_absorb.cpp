#include <algorithm>
#include <utility>

#include "dkfac/core/ops.h"

#include "core/shared/index.h"
#include "kfac/curvature/engine.h"
#include "kfac/inverse/failed_factor.h"
#include "kfac/shared/phase_timer.h"

// What a passed vote lets in: reduced statistics into averages, averages into inverses, and the
// decisions of owners into the timetable of every rank.
namespace dkfac::kfac {
void Engine::merge(int index, StepReport& report) {
  LayerCurvature& c = at(index / 2).curvature;
  const TensorView sum = slot_of(index);
  const StatisticKind kind = statistic(index).plan.kind;
  const bool fisher = kind == StatisticKind::batch_norm && !c.g.is_set();
  Factor& factor = kind == StatisticKind::a ? c.a : c.g;
  const bool merged = fisher ? merge_fisher(ctx_, options_, sum, c, verdict(index))
                             : merge_factor(ctx_, options_, sum, factor, verdict(index));
  report.failed_factors += merged ? 0 : 1;
  if (needs_notes()) keep_for_notes(index, merged);
}

/// One that was refused is similar to nothing and leaves the history alone.
void Engine::keep_for_notes(int index, bool merged) {
  Statistic& s = statistic(index);
  const bool adaptive = options_.staleness == Staleness::adaptive;
  if (ctx_.device().is_cuda()) {
    if (merged && adaptive) s.history.keep(ctx_, slot_of(index).reshape(s.plan.shape));
    return;
  }
  double largest = 0;
  if (options_.statistics_wire == DType::f16 && merged)
    ops::max_abs(ctx_, slot_of(index), view_of(&largest, {1}));
  StatisticHistory::Similarity similarity;
  if (merged && adaptive)
    similarity = s.history.push(ctx_, s.plan.form, slot_of(index).reshape(s.plan.shape),
                                options_.staleness_alpha);
  decide(index, similarity, largest);
}

/// The note of a statistic that has just been refreshed: of its owner, on a device of every rank.
void Engine::decide(int index, const StatisticHistory::Similarity& similarity, double largest) {
  StatisticNote& note = notes_[index_of(index)];
  note = {};
  if (options_.statistics_wire == DType::f16) note.exponent = comm::exponent_of(largest);
  if (options_.staleness != Staleness::adaptive) return;
  note.interval = next_intervals(timetable_.entry(index).intervals, similarity.to_last,
                                 similarity.to_before, options_.max_interval)
                      .last;
  note.drift = similarity.drift;
}

void Engine::refresh_owned(StepReport& report) {
  const PhaseTimer timer(report.seconds.inverse, "inverse");
  tasks_.clear();
  for (int i = 0; i < layers(); ++i) {
    const RefreshParts parts{.a = rebuild_due(input_of(i)), .g = rebuild_due(output_of(i))};
    if (owns(i) && (parts.a || parts.g))
      add_refresh_tasks(ctx_, options_, at(i).curvature, parts, tasks_);
  }
  workers_.run(tasks_);
  if (!ctx_.device().is_cuda()) return report_inverses(tasks_, report);
  // What failed here is made by the ladder before other ranks are given it, before the next
  // gradients are projected on eigenvectors, and before a gradient is taken for preconditioned.
  if (grid_.workers > 1 || options_.inverse == InverseMethod::ekfac || some_lack_inverse_)
    settle(report);
}

bool Engine::lacks_inverse(int layer) const {
  return owns(layer) && covered(layer) && !has_inverse(spec(layer), at(layer).curvature);
}

/// Which layers have no inverse is known to their owners.
void Engine::name_layers_without_inverse(StepReport& report) {
  double* const lacks = lack_inverse_.numbers<double>();
  for (int i = 0; i < layers(); ++i) lacks[i] = lacks_inverse(i) ? 1 : 0;
  if (comm_->size() > 1) {
    lack_inverse_.push(ctx_);
    comm_->all_reduce(lack_inverse_.device(), comm::ReduceOp::sum, ctx_.stream(),
                      "layers without an inverse");
    lack_inverse_.fetch(ctx_);
    ctx_.stream().synchronize();
  }
  bool any = false;
  for (int i = 0; i < layers(); ++i) {
    if (!covered(i)) continue;
    if (lacks[i] > 0)
      report.without_inverse.push_back(name(i));
    else
      any = true;
  }
  report.updated = any;
}

void Engine::absorb(StepReport& report) {
  if (timetable_.any_due()) {
    const PhaseTimer timer(report.seconds.update);
    const PhaseTimer part(report.seconds.average);
    for (int i = 0; i < std::ssize(statistics_); ++i)
      if (timetable_.due(i) && owns(i / 2)) merge(i, report);
    // Before the eigenvectors that they belong to are replaced.
    for (int i = 0; i < layers(); ++i)
      if (at(i).scale_records > 0) merge_layer_scales(i, report);
    report.statistics_refreshed = true;
  }
  for (int i = 0; i < std::ssize(statistics_); ++i)
    report.inverses_refreshed = report.inverses_refreshed || rebuild_due(i);
  if (report.inverses_refreshed) refresh_owned(report);
  if (some_lack_inverse_) name_layers_without_inverse(report);
  note_failed();
  if (report.statistics_refreshed && needs_notes()) {
    const PhaseTimer timer(report.seconds.exchange, "exchange");
    if (ctx_.device().is_cuda())
      learn_notes();
    else
      exchange_notes();
  }
}

bool Engine::needs_notes() const {
  return options_.staleness == Staleness::adaptive || options_.statistics_wire == DType::f16;
}

std::span<double> Engine::note_numbers(int index) {
  return {note_numbers_.numbers<double>() + std::int64_t{kNumbersPerNote} * index, kNumbersPerNote};
}

/// Every number is written by one rank and zero elsewhere, so that the sums are exact.
void Engine::exchange_notes() {
  ops::fill(ctx_, note_numbers_.host(), 0);
  for (int i = 0; i < std::ssize(statistics_); ++i)
    if (timetable_.due(i) && owns(i / 2)) encode_note(notes_[index_of(i)], note_numbers(i));
  comm_->all_reduce(note_numbers_.host(), comm::ReduceOp::sum, Stream::cpu(), "notes");
  for (int i = 0; i < std::ssize(statistics_); ++i)
    if (timetable_.due(i)) notes_[index_of(i)] = decode_note(note_numbers(i));
}

/// Looks for factors that have failed too often; the first time one that could not be inverted is
/// seen it is saved.
void Engine::note_failed() {
  failed_statistic_ = -1;
  const auto note = [this](int index, int count, FailedAt what) {
    if (count <= options_.max_failed_refreshes) return false;
    failed_statistic_ = index;
    failed_at_ = what;
    return true;
  };
  const auto note_factor = [&](int index, const Factor& factor) {
    note(index, factor.refused, FailedAt::statistic);
    std::string& saved_as = at(index / 2).saved_as;
    if (note(index, factor.failures, FailedAt::inversion) && saved_as.empty())
      saved_as =
          save_failed_factor(ctx_, options_, name(index / 2), index % 2 == 0 ? "a" : "g", factor);
  };
  for (int i = 0; i < layers(); ++i) {
    const LayerCurvature& c = at(i).curvature;
    if (!owns(i)) continue;
    note_factor(input_of(i), c.a);
    note_factor(output_of(i), c.g);
    note(output_of(i), c.fisher_refused, FailedAt::statistic);
    note(output_of(i), c.scales_refused, FailedAt::scales);
  }
}

void Engine::report_work(bool accepted, StepReport& report) const {
  if (!accepted) return;
  const std::size_t element = size_of(options_.statistics_wire.value_or(options_.dtype));
  for (int i = 0; i < std::ssize(statistics_); ++i) {
    const Statistic& s = statistic(i);
    if (s.slot < 0) continue;
    if (timetable_.due(i)) {
      report.flops += s.step_flops;
    } else {
      report.bytes_skipped += static_cast<std::uint64_t>(s.plan.numel()) * element;
      report.flops_skipped += s.flops;
    }
    (timetable_.rebuild_due(i) ? report.flops : report.flops_skipped) +=
        timetable_.entry(i).inverse_flops;
  }
}

void Engine::end_step(StepReport& report) {
  const bool accepted = report.vote.may_update();
  report.damping = options_.damping;
  report.underflow = static_cast<std::int64_t>(*underflow_.numbers<float>());
  const PhaseSeconds seconds = std::exchange(seconds_, {});
  report.seconds.statistics = seconds.statistics;
  report.seconds.statistics_a = seconds.statistics_a;
  report.seconds.statistics_g = seconds.statistics_g;
  report.seconds.precondition = seconds.precondition;
  ops::fill(ctx_, underflow_.device(), 0);
  ops::fill(ctx_, nonfinite_, 0);
  report_work(accepted, report);
  for (int i = 0; i < std::ssize(statistics_); ++i) {
    Statistic& s = statistic(i);
    const double flops = s.step_flops;
    s.forget_records();
    if (accepted) s.foreign = false;
    if (!accepted || !timetable_.due(i)) continue;
    s.flops = flops;
    s.has_range = true;
    ranges_.data<float>()[i] = new_ranges_.numbers<float>()[i];
  }
  for (Layer& layer : layers_) {
    layer.scale_records = 0;
    layer.has_input = false;
  }
  auto out = reports_.begin();
  for (int i = 0; i < std::ssize(statistics_); ++i)
    if (statistic(i).slot >= 0) (out++)->refreshed = accepted && timetable_.due(i);
  if (accepted) timetable_.advance(notes_);
  // A part may have been too large for its wire; no other vote says anything of magnitudes.
  if (report.vote.nonfinite_statistic > 0) timetable_.forget_exponents();
  out = reports_.begin();
  for (int i = 0; i < std::ssize(statistics_); ++i) {
    if (statistic(i).slot < 0) continue;
    timetable_.describe(i, *out++);
  }
  report.statistics = reports_;
}

}  // namespace dkfac::kfac
