#include "kfac/engine.h"

#include <utility>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/assignment.h"

#include "kfac/phase_timer.h"

namespace dkfac::kfac {
namespace {

std::size_t index_of(int i) { return static_cast<std::size_t>(i); }
bool is_batch_norm(const LayerSpec& spec) { return std::holds_alternative<BatchNormSpec>(spec); }
bool is_plain(const LayerSpec& spec) { return std::holds_alternative<PlainSpec>(spec); }

}  // namespace

Engine::Engine(Context& ctx, std::shared_ptr<comm::Communicator> comm, CurvatureOptions options)
    : ctx_(ctx), comm_(std::move(comm)), options_(options), workers_(ctx) {
  options_.validate();
}

void Engine::add_layer(std::string name, LayerSpec spec) {
  names_.push_back(std::move(name));
  specs_.push_back(std::move(spec));
}

void Engine::prepare(std::int64_t vote_tail) {
  std::vector<LayerLoad> loads;
  for (const LayerSpec& spec : specs_) loads.push_back(layer_load(spec, options_.dtype));
  owners_ = assign(loads, comm_->size());
  layers_.resize(specs_.size());
  // A leaves in forward order; G and the BatchNorm Fisher in backward order, hence later.
  std::vector<Slot> a_slots, g_slots;
  const int count = layers();
  for (int i = 0; i < count; ++i) {
    if (owner(i) == comm_->rank())
      layers_[index_of(i)].curvature = make_layer_curvature(ctx_, spec(i), options_);
    if (!has_factors(spec(i))) continue;
    layers_[index_of(i)].input.slot = static_cast<int>(a_slots.size());
    a_slots.push_back({owner(i), ops::packed_size(a_dim(spec(i))), i});
  }
  for (int i = count - 1; i >= 0; --i) {
    if (is_plain(spec(i))) continue;
    layers_[index_of(i)].output.slot = static_cast<int>(g_slots.size());
    const auto* bn = std::get_if<BatchNormSpec>(&spec(i));
    const std::int64_t numel = bn != nullptr
                                   ? batch_norm_rows(*bn, options_.batch_norm) * bn->channels
                                   : ops::packed_size(g_dim(spec(i)));
    g_slots.push_back({owner(i), numel, 2 * count - 1 - i});
  }
  a_exchange_.emplace(ctx_, *comm_, "statistics A", Recipients::owners, std::move(a_slots),
                      options_.dtype, options_.bucket_bytes, 0);
  g_exchange_.emplace(ctx_, *comm_, "statistics G", Recipients::owners, std::move(g_slots),
                      options_.dtype, options_.bucket_bytes, vote_tail);
  ranges_ = Tensor::zeros(ctx_, {2 * count});
  new_ranges_ = Tensor::zeros(ctx_, {2 * count});
  underflow_ = Tensor::zeros(ctx_, {1});
  nonfinite_ = Tensor::zeros(ctx_, {1});
}

void Engine::set_damping(double damping) {
  CurvatureOptions changed = options_;
  changed.damping = damping;
  changed.validate();
  if (damping == options_.damping) return;
  options_ = changed;
  stale_ = true;
  for (Layer& layer : layers_) layer.curvature.stale = layer.curvature.statistics > 0;
}

const std::string& Engine::name(int layer) const { return names_[index_of(layer)]; }
const LayerSpec& Engine::spec(int layer) const { return specs_[index_of(layer)]; }

std::string Engine::describe() const {
  return describe_assignment(names_, specs_, owners_, comm_->size(), options_.dtype);
}

void Engine::require_records(bool forgive) {
  for (int i = 0; i < layers(); ++i) {
    for (const bool input : {true, false}) {
      const Recording& record = input ? layers_[index_of(i)].input : layers_[index_of(i)].output;
      Exchange& exchange = input ? *a_exchange_ : *g_exchange_;
      if (record.slot < 0) continue;
      if (record.records < options_.micro_batches) {
        DKFAC_CHECK(forgive, "[step] layer '", name(i), "' has ", record.records, " of ",
                    options_.micro_batches, " ",
                    input                    ? "record_input"
                    : is_batch_norm(spec(i)) ? "record_batch_norm"
                                             : "record_grad_output",
                    "; record every layer where wants_statistics()");
        if (record.records == 0) ops::fill(ctx_, exchange.slot(record.slot), 0);
      }
      exchange.mark_filled(record.slot);
    }
  }
}

void Engine::fill_ballot(Ballot& ballot) const {
  ballot.nonfinite_statistic = *nonfinite_.data<float>() != 0;
  ballot.failed_layer = failed_layer_;
  ballot.hash = mix_hash(ballot.hash, options_.damping);
}

bool Engine::merge(int layer) {
  Layer& l = layers_[index_of(layer)];
  if (has_factors(spec(layer)))
    return merge_factors(ctx_, options_, a_exchange_->slot(l.input.slot),
                         g_exchange_->slot(l.output.slot), l.curvature);
  return is_plain(spec(layer)) ||
         merge_fisher(ctx_, options_, g_exchange_->slot(l.output.slot), l.curvature);
}

void Engine::merge_owned(StepReport& report) {
  const PhaseTimer timer(report.seconds.update);
  for (int i = 0; i < layers(); ++i) {
    if (!owns(i)) continue;
    int& failures = layers_[index_of(i)].curvature.failures;
    if (!merge(i)) {
      ++report.failed_factors;
      ++failures;
    } else if (!has_factors(spec(i))) {
      failures = 0;  // of factors, the refresh decides
    }
  }
}

void Engine::refresh_owned(StepReport& report) {
  const PhaseTimer timer(report.seconds.inverse, "inverse");
  tasks_.clear();
  for (int i = 0; i < layers(); ++i) {
    LayerCurvature& curvature = layers_[index_of(i)].curvature;
    if (owns(i) && has_factors(spec(i)) && curvature.stale)
      add_refresh_tasks(ctx_, options_, curvature, tasks_);
  }
  workers_.run(options_, tasks_);
  std::size_t next = 0;
  for (int i = 0; i < layers(); ++i) {
    LayerCurvature& curvature = layers_[index_of(i)].curvature;
    if (!owns(i) || !has_factors(spec(i)) || !std::exchange(curvature.stale, false)) continue;
    const int failed = (tasks_[next].good ? 0 : 1) + (tasks_[next + 1].good ? 0 : 1);
    next += 2;
    report.failed_factors += failed;
    curvature.failures = failed == 0 ? 0 : curvature.failures + 1;
  }
}

void Engine::absorb(StepReport& report) {
  if (statistics_due()) {
    merge_owned(report);
    report.statistics_refreshed = true;
    stale_ = true;
  }
  if (inverses_due() && stale_) {
    refresh_owned(report);
    report.inverses_refreshed = true;
    stale_ = false;
  }
  note_failed();
}

void Engine::note_failed() {
  for (int i = 0; i < layers(); ++i)
    if (layers_[index_of(i)].curvature.failures > options_.max_failed_refreshes) failed_layer_ = i;
}

void Engine::apply(int layer, TensorView weight, TensorView bias) {
  apply_curvature(ctx_, spec(layer), options_, layers_[index_of(layer)].curvature, weight, bias);
}

void Engine::end_step(bool accepted, StepReport& report) {
  report.damping = options_.damping;
  report.underflow = static_cast<std::int64_t>(*underflow_.data<float>());
  report.seconds.statistics = std::exchange(statistics_seconds_, 0);
  ops::fill(ctx_, underflow_, 0);
  ops::fill(ctx_, nonfinite_, 0);
  const bool refreshed = accepted && statistics_due();
  if (refreshed) std::swap(ranges_, new_ranges_);
  for (Layer& layer : layers_)
    for (Recording* record : {&layer.input, &layer.output}) {
      record->records = 0;
      record->has_range = record->has_range || refreshed;
    }
  if (accepted) ++accepted_;
}

void Engine::throw_failure(const Outcome& outcome) const {
  const std::string where =
      outcome.failed_layer >= 0 && outcome.failed_layer < layers()
          ? detail::concat("layer '", name(outcome.failed_layer), "', owned by rank ",
                           outcome.failed_rank, ",")
          : detail::concat(outcome.result.numeric_failure, " ranks have a layer that");
  throw NumericError(detail::concat("[inverse] ", where, " could not be inverted more than ",
                                    options_.max_failed_refreshes, " times in a row at damping ",
                                    options_.damping,
                                    "; raise the damping, or set CurvatureOptions::dtype to f64"));
}

}  // namespace dkfac::kfac
