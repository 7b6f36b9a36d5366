#include "kfac/curvature/recorder.h"

#include <bit>

#include "dkfac/core/ops.h"

#include "core/shared/activity_timer.h"
#include "kfac/curvature/pass_state.h"

namespace dkfac::kfac {

Recorder::Recorder(LayerTable& layers, ContextOptions context)
    : layers_(layers),
      stream_(layers.ctx, layers.options.statistics.records_valid_until_step, context) {}

void Recorder::prepare(std::int64_t trailer) {
  nonfinite_ = Tensor::zeros(layers_.ctx, {1});
  sums_.emplace(layers_, trailer, nonfinite_, on());
  ranges_.emplace(layers_, on());
  finite_ = comm::HostDevicePair(layers_.ctx, {layers_.ids() + layers_.layers()}, DType::f64);
}

bool Recorder::wants_statistics() const {
  return layers_.statistics.empty() || layers_.schedule.any_due();
}

bool Recorder::wants_input(LayerId id) const {
  const CurvatureBlock& block = layers_.layer(layers_.checked(id, "wants_input"));
  return layers_.statistics.empty() ? block.needs_input() : layers_.recorded_here(block.a);
}

bool Recorder::wants_grad_output(LayerId id) const {
  const CurvatureBlock& block = layers_.layer(layers_.checked(id, "wants_grad_output"));
  return layers_.statistics.empty() ? block.has_curvature() : layers_.recorded_here(block.g);
}

void Recorder::record(LayerId id, Stream stream, const LayerRecord& record) {
  stream_.enter(record.call, stream);
  double norms = 0;  // Has no seconds of its own.
  {
    const ActivityTimer timer(seconds_.statistics, "statistics");
    const Metered metered(layers_.meter, StepPart::statistics);
    const ActivityTimer part(record.kind == StatisticKind::a   ? seconds_.statistics_a
                             : record.kind == StatisticKind::g ? seconds_.statistics_g
                                                               : norms);
    layers_.layer(layers_.checked(id, record.call))
        .record({layers_, *sums_, *ranges_, on(), nonfinite_}, record);
  }
  stream_.leave(stream);
}

std::optional<PassState> Recorder::pass_state(RecordScale scale) {
  // Replayed work is in the order of the caller's stream, which does not wait for that one.
  if (stream_.apart() != nullptr) return std::nullopt;
  PassState state;
  if (!wants_statistics()) return state;
  state.words = pass_words(layers_, *sums_, *ranges_);
  state.words.push_back(std::bit_cast<std::int64_t>(scale.loss_scale));
  state.words.push_back(scale.global_batch);
  { const Scratch scratch(on()); }  // Merges scratch blocks now: later, that would move them.
  state.moves = on().scratch_growths();
  for (const auto& block : layers_.blocks)
    if (const ScaleRecords* scales = block->scales()) state.moves += scales->moves;
  return state;
}

void Recorder::resume(const PassState& state) {
  constexpr std::size_t kScaleWords = 2;
  DKFAC_CHECK(wants_statistics()
                  ? state.words.size() == pass_words(layers_, *sums_, *ranges_).size() + kScaleWords
                  : state.words.empty(),
              "[resume] the state is of a step in which other statistics are due; resume one that "
              "pass_state() has returned since the last change of what is due");
  if (!state.words.empty()) set_records(layers_, *sums_, state.words);
}

void Recorder::complete(bool allow_missing) {
  stream_.join();
  const int all = layers_.options.statistics.micro_batches;
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    if (!layers_.recorded_here(id)) continue;
    const Statistic& s = layers_.statistic(id);
    if (s.records < all) {
      DKFAC_CHECK(allow_missing, "[step] layer '", layers_.layer(s.layer).name, "' has ", s.records,
                  " of ", all, " ", s.traits.call,
                  "; record every layer where wants_input() and wants_grad_output() say so");
      if (s.records == 0) ops::fill(layers_.ctx, sums_->of(id), 0);
    }
    sums_->mark_filled(id);
    if (s.plan.kind != StatisticKind::g || !layers_.scales_due(s.layer)) continue;
    if (layers_.layer(s.layer).scales()->records == 0)
      ops::fill(layers_.ctx, sums_->of_scales(s.layer), 0);
    sums_->mark_scales_filled(s.layer);
  }
}

void Recorder::raise_flags(comm::FlagMessage& message) const {
  message.statistic_count = nonfinite_;
  bool recorded = false, samples = false;
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    if (!layers_.due(id) || !layers_.recorded_here(id)) continue;
    recorded = true;
    samples = samples || layers_.statistic(id).samples > 0;
  }
  message.no_samples = recorded && !samples;
}

void Recorder::request() {
  ranges_->request();
  if (!layers_.schedule.any_due()) return;
  for (StatisticId id = 0; id < layers_.ids(); ++id)
    if (layers_.due(id) && layers_.averaged_here(id))
      check_finite(layers_.ctx, layers_.statistic(id).plan.factor, sums_->of(id),
                   finite_on_device(id));
  for (int i = 0; i < layers_.layers(); ++i)
    if (layers_.scales_due(i))
      check_finite(layers_.ctx, {}, sums_->of_scales(i), finite_on_device(layers_.ids() + i));
  finite_.fetch(layers_.ctx);
}

void Recorder::require_samples(const comm::AgreedFlags& agreed) const {
  if (!agreed.flags.may_update()) return;
  const int ranks = layers_.comm->size(), without = agreed.without_samples;
  DKFAC_CHECK(without < ranks, "[step] none of the ", ranks,
              " ranks has recorded a sample in this step, so that its statistics would be 0; pass "
              "a batch that has some on at least one of them");
  DKFAC_CHECK(without == 0 || !layers_.has_local_statistics(), "[step] ", without, " of the ",
              ranks,
              " ranks have recorded no sample in this step; local_statistics need some on each");
}

void Recorder::finish(bool accepted, StepReport& report) {
  report.underflow = ranges_->underflow();
  report.seconds.statistics = seconds_.statistics;
  report.seconds.statistics_a = seconds_.statistics_a;
  report.seconds.statistics_g = seconds_.statistics_g;
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    Statistic& s = layers_.statistic(id);
    if (!accepted || !layers_.recorded_here(id)) continue;
    s.flops = s.step_flops;
    ranges_->accept(id);
  }
  drop_records();
}

void Recorder::drop_records() {
  for (Statistic& s : layers_.statistics) s.forget_records();
  for (const auto& block : layers_.blocks)
    if (ScaleRecords* const scales = block->scales()) {
      scales->records = 0;
      scales->has_input = false;
    }
  ranges_->begin_step();
  ops::fill(layers_.ctx, nonfinite_, 0);
  seconds_ = {};
}

}  // namespace dkfac::kfac
