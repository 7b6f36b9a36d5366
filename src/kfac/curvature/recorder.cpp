#include "kfac/curvature/recorder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "dkfac/core/ops.h"

#include "core/shared/activity_timer.h"
#include "kfac/curvature/pass_state.h"
#include "kfac/curvature/record_parts.h"
#include "kfac/statistics/norm_data.h"

namespace dkfac::kfac {
namespace {

/// The samples that enter the statistics, and the global batch that they represent.
struct Sampled {
  ConstTensorView data;
  double global_batch = 0;
};

Sampled sample(ConstTensorView data, double global_batch, double fraction, std::int64_t block = 1) {
  const std::int64_t n = data.dim(0), part = sampled(n, fraction, block);
  if (part == n) return {data, global_batch};
  return {data.slice(0, 0, part),
          global_batch * static_cast<double>(part) / static_cast<double>(n)};
}

/// Positions of each of n samples.
std::int64_t positions_of(std::int64_t rows, std::int64_t n) { return n == 0 ? 1 : rows / n; }

/// Number of output gradients that are summed into one element of the operand.
std::int64_t summed_positions(const LayerSpec& spec, WeightSharing sharing, ConstTensorView dy) {
  const std::int64_t channels = dy.dim(0) * factor_groups(spec) * g_dim(spec);
  return sharing == WeightSharing::reduce && channels > 0 ? dy.numel() / channels : 1;
}

}  // namespace

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
  return layers_.statistics.empty() ? block.needs_input() : layers_.due(block.a);
}

bool Recorder::wants_grad_output(LayerId id) const {
  const CurvatureBlock& block = layers_.layer(layers_.checked(id, "wants_grad_output"));
  return layers_.statistics.empty() ? block.has_curvature() : layers_.due(block.g);
}

void Recorder::record_input(LayerId id, ConstTensorView input, Stream stream, RecordScale scale) {
  stream_.enter("record_input", stream);
  record_factor("record_input", StatisticKind::a, id, input, scale);
  stream_.leave(stream);
}

void Recorder::record_grad_output(LayerId id, ConstTensorView grad_output, Stream stream,
                                  RecordScale scale) {
  stream_.enter("record_grad_output", stream);
  record_factor("record_grad_output", StatisticKind::g, id, grad_output, scale);
  stream_.leave(stream);
}

void Recorder::record_factor(const char* call, StatisticKind kind, LayerId id, ConstTensorView data,
                             RecordScale scale) {
  const bool is_a = kind == StatisticKind::a;
  const ActivityTimer timer(seconds_.statistics, "statistics");
  const ActivityTimer part(is_a ? seconds_.statistics_a : seconds_.statistics_g);
  const int index = layers_.checked(id, call);
  const Caller caller(call, layers_.layer(index).name);
  KroneckerBlock* const block = layers_.layer(index).factors(caller);
  const StatisticId recorded = is_a ? layers_.layer(index).a : layers_.layer(index).g;
  if (block == nullptr || !layers_.due(recorded)) return;
  const CurvatureOptions& options = layers_.options;
  const std::int64_t count = block->recorded_rows(caller, kind, data);
  check_device(caller, is_a ? "the input" : "the output gradient", data, layers_.ctx.device());
  const WeightSharing sharing = sharing_of(block->spec, options);
  const std::int64_t positions =
      sharing == WeightSharing::reduce ? 1 : positions_of(count, data.dim(0));
  const double global = check_record(layers_, caller, recorded, data, count, scale);
  const Sampled x = sample(data, global, options.statistics.fraction);
  if (layers_.scales_due(index)) block->check_alternation(caller, kind, x.data);
  const FactorRecord record{
      .data = x.data,
      .global_batch = x.global_batch,
      .sample_scale = is_a ? 1
                           : sample_gradient_scale(options.loss_reduction,
                                                   data.dim(0) * options.statistics.micro_batches,
                                                   std::llround(global), scale.loss_scale),
      .operand = layers_.statistic(recorded).plan.factor.is_diagonal()  // It has no operand.
                     ? Operand{options.dtype, 1}
                     : ranges_->operand(recorded, x.data,
                                        is_a ? 1 : summed_positions(block->spec, sharing, x.data)),
      .stats = ranges_->measure(recorded),
      .sharing = sharing};
  add_record(layers_, caller, recorded, *block, record, x.data.dim(0) * positions,
             {on(), sums_->of(recorded), nonfinite_});
  if (layers_.scales_due(index)) record_scales(*block, index, kind, record);
  ranges_->measured(recorded, nonfinite_);
  // Depends on the count alone, so that buckets are launched in the same order on every rank.
  if (count_record(layers_, recorded, global, data.dim(0), count, positions))
    sums_->mark_filled(recorded);
}

void Recorder::record_scales(KroneckerBlock& block, int layer, StatisticKind kind,
                             const FactorRecord& record) {
  if (kind == StatisticKind::a) return block.keep_input(on(), record.data);
  const TensorView sum = sums_->of_scales(layer);
  block.record_scales(on(), record, sum);
  if (block.scale_records < layers_.options.statistics.micro_batches) return;
  ops::count_nonfinite(on(), sum, nonfinite_);
  sums_->mark_scales_filled(layer);
}

template <class Check, class Compute>
void Recorder::add_fisher(const char* call, LayerId id, RecordScale scale, Check check,
                          Compute compute) {
  const ActivityTimer timer(seconds_.statistics, "statistics");
  const int index = layers_.checked(id, call);
  const CurvatureBlock& block = layers_.layer(index);
  const Caller caller(call, block.name);
  const NormSpec& norm = block.normalization(caller);
  if (!layers_.due(block.g)) return;
  const CurvatureOptions& options = layers_.options;
  // Ghost groups have one mean each, so whole groups are sampled; a single group is the batch.
  const auto [data, positions, per_group] = check(caller, norm);
  const std::int64_t samples = data.dim(0);
  const double global = check_record(layers_, caller, block.g, data, samples, scale);
  const double sample_scale =
      sample_gradient_scale(options.loss_reduction, samples * options.statistics.micro_batches,
                            std::llround(global), scale.loss_scale);
  const Sampled part = sample(data, global, options.statistics.fraction, per_group);
  const Statistic& s = layers_.statistic(block.g);
  const TensorView fisher = sums_->of(block.g).reshape(s.plan.shape);
  compute(norm, part.data, part.global_batch, sample_scale, s.records == 0 ? 0.0 : 1.0, fisher);
  ops::count_nonfinite(on(), fisher, nonfinite_);
  if (count_record(layers_, block.g, global, samples, samples, positions))
    sums_->mark_filled(block.g);
}

void Recorder::record_normalization(LayerId id, ConstTensorView x, ConstTensorView mean,
                                    ConstTensorView inv_std, ConstTensorView grad_output,
                                    Stream stream, RecordScale scale) {
  stream_.enter("record_normalization", stream);
  std::int64_t groups = 1;
  add_fisher(
      "record_normalization", id, scale,
      [&](const Caller& caller, const NormSpec& norm) {
        groups = check_norm(caller, norm, x, mean, inv_std, grad_output, layers_.ctx.device());
        return NormSamples{
            .data = x,
            .positions = positions_of(x.numel() / norm.channels, x.dim(0)),
            .per_group = groups > 1 ? std::max<std::int64_t>(1, x.dim(0) / groups) : 1};
      },
      [&](const NormSpec& norm, ConstTensorView part, double batch, double sample_scale,
          double beta, TensorView fisher) {
        const std::int64_t n = part.dim(0), all = x.dim(0);
        // One group has one mean; with NormOver::channels each row has.
        const bool is_shared = groups == 1 && norm.over != NormOver::channels;
        const auto first = [&](ConstTensorView view) {
          return n == all || is_shared ? view : view.slice(0, 0, view.dim(0) * n / all);
        };
        const ConstTensorView dy = n < all ? grad_output.slice(0, 0, n) : grad_output;
        compute_norm_fisher(on(), norm, layers_.options.statistics.norm_fisher,
                            NormRecord{.x = part,
                                       .mean = first(mean),
                                       .inv_std = first(inv_std),
                                       .grad_output = dy,
                                       .global_batch = batch,
                                       .sample_scale = sample_scale},
                            beta, fisher);
      });
  stream_.leave(stream);
}

void Recorder::record_sample_gradients(LayerId id, ConstTensorView gradients, Stream stream,
                                       RecordScale scale) {
  stream_.enter("record_sample_gradients", stream);
  add_fisher(
      "record_sample_gradients", id, scale,
      [&](const Caller& caller, const NormSpec& norm) {
        return check_norm_samples(caller, norm, gradients, layers_.ctx.device());
      },
      [&](const NormSpec& norm, ConstTensorView part, double batch, double sample_scale,
          double beta, TensorView fisher) {
        compute_norm_fisher(
            on(), norm, layers_.options.statistics.norm_fisher,
            NormSampleRecord{
                .gradients = part, .global_batch = batch, .sample_scale = sample_scale},
            beta, fisher);
      });
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
  for (const auto& block : layers_.blocks) state.moves += block->input_moves;
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
    if (!layers_.due(id)) continue;
    const Statistic& s = layers_.statistic(id);
    if (s.records < all) {
      DKFAC_CHECK(allow_missing, "[step] layer '", layers_.layer(s.layer).name, "' has ", s.records,
                  " of ", all, " ", s.traits.call,
                  "; record every layer where wants_input() and wants_grad_output() say so");
      if (s.records == 0) ops::fill(layers_.ctx, sums_->of(id), 0);
    }
    sums_->mark_filled(id);
    if (s.plan.kind != StatisticKind::g || !layers_.scales_due(s.layer)) continue;
    if (layers_.layer(s.layer).scale_records == 0)
      ops::fill(layers_.ctx, sums_->of_scales(s.layer), 0);
    sums_->mark_scales_filled(s.layer);
  }
}

void Recorder::raise_flags(comm::FlagMessage& message) const {
  message.statistic_count = nonfinite_;
  message.no_samples = layers_.schedule.any_due();
  for (StatisticId id = 0; id < layers_.ids(); ++id)
    if (layers_.due(id) && layers_.statistic(id).samples > 0) message.no_samples = false;
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
  DKFAC_CHECK(!agreed.no_samples || !agreed.flags.may_update(), "[step] none of the ",
              layers_.comm->size(),
              " ranks has recorded a sample in this step, so that its statistics would be 0; pass "
              "a batch that has some on at least one of them");
}

void Recorder::finish(bool accepted, StepReport& report) {
  report.underflow = ranges_->underflow();
  report.seconds.statistics = seconds_.statistics;
  report.seconds.statistics_a = seconds_.statistics_a;
  report.seconds.statistics_g = seconds_.statistics_g;
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    Statistic& s = layers_.statistic(id);
    if (!accepted || !layers_.due(id)) continue;
    s.flops = s.step_flops;
    ranges_->accept(id);
  }
  drop_records();
}

void Recorder::drop_records() {
  for (Statistic& s : layers_.statistics) s.forget_records();
  for (const auto& block : layers_.blocks) block->forget_records();
  ranges_->begin_step();
  ops::fill(layers_.ctx, nonfinite_, 0);
  seconds_ = {};
}

}  // namespace dkfac::kfac
