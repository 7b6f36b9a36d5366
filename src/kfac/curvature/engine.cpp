#include "kfac/curvature/engine.h"

#include <utility>

#include "dkfac/core/ops.h"
#include "dkfac/kfac/assignment.h"

#include "core/shared/index.h"
#include "kfac/shared/phase_timer.h"

namespace dkfac::kfac {
namespace {

bool is_batch_norm(const LayerSpec& spec) { return std::holds_alternative<BatchNormSpec>(spec); }
bool is_plain(const LayerSpec& spec) { return std::holds_alternative<PlainSpec>(spec); }

}  // namespace

Engine::Engine(Context& ctx, std::shared_ptr<comm::Communicator> comm, CurvatureOptions options)
    : ctx_(ctx),
      records_on_(&ctx),
      comm_(std::move(comm)),
      options_(std::move(options)),
      workers_(ctx) {
  options_.validate();
}

void Engine::add_layer(std::string name, LayerSpec spec) {
  names_.push_back(std::move(name));
  specs_.push_back(std::move(spec));
}

const std::string& Engine::name(int layer) const { return names_[index_of(layer)]; }
const LayerSpec& Engine::spec(int layer) const { return specs_[index_of(layer)]; }

int Engine::checked(LayerId id, const char* operation) const {
  const int index = static_cast<int>(id);
  DKFAC_CHECK(index >= 0 && index < layers(), "[", operation, "] layer id ", index,
              " does not exist; add_layer() returned 0 to ", layers() - 1);
  return index;
}

void Engine::prepare(const WorkerGrid& grid, std::int64_t vote_tail) {
  grid_ = grid;
  DKFAC_CHECK(options_.inverse != InverseMethod::ekfac || grid_.workers == comm_->size(),
              "[curvature options] inverse is ekfac with worker_fraction ",
              options_.worker_fraction, " on ", comm_->size(),
              " ranks; every rank projects its gradients on the eigenvectors of all layers, so set "
              "worker_fraction to 1");
  std::vector<LayerLoad> loads;
  for (const LayerSpec& spec : specs_) loads.push_back(layer_load(spec, options_.dtype));
  if (options_.calibrate) {
    // Only proportions count; all layers get theirs in seconds.
    costs_ = kfac::calibrate(*comm_, options_, measure_on(ctx_, options_.dtype), ctx_.device());
    for (std::size_t i = 0; i < specs_.size(); ++i)
      loads[i].flops = layer_seconds(costs_, specs_[i], options_, ctx_.device());
  }
  owners_ = assign(loads, comm_->size());
  layers_.resize(specs_.size());
  for (int i = 0; i < layers(); ++i) {
    if (!grid_.works(owner(i))) continue;
    LayerCurvature& curvature = at(i).curvature;
    curvature = make_layer_curvature(ctx_, spec(i), options_);
    if (owns(i)) continue;
    // Only the owner averages; the other workers are given its inverses.
    curvature.a.average = Tensor{};
    curvature.g.average = Tensor{};
  }
  nonfinite_ = Tensor::zeros(ctx_, {1});
  make_statistics();
  make_exchanges(vote_tail);
  plan_timetable();
  const auto count = std::ssize(statistics_);
  Context host;
  ranges_ = Tensor::zeros(host, {count});
  new_ranges_ = Mirror(ctx_, {count}, DType::f32);
  underflow_ = Mirror(ctx_, {1}, DType::f32);
  if (ctx_.device().is_cuda()) {
    verdicts_ = Mirror(ctx_, {count + layers()}, DType::f64);
    stages_ = Mirror(ctx_, {count}, DType::i32);
  }
  note_numbers_ = Mirror(ctx_, {count * kNumbersPerNote}, DType::f64);
}

void Engine::make_statistics() {
  statistics_.resize(2 * specs_.size());
  notes_.resize(statistics_.size());
  for (int i = 0; i < layers(); ++i) {
    statistic_names_.push_back(name(i) + ".a");
    statistic_names_.push_back(name(i) + (is_batch_norm(spec(i)) ? ".fisher" : ".g"));
    statistic(input_of(i)).plan =
        plan_statistic(spec(i), options_, StatisticKind::a, ctx_.device());
    statistic(output_of(i)).plan = plan_statistic(
        spec(i), options_, is_batch_norm(spec(i)) ? StatisticKind::batch_norm : StatisticKind::g,
        ctx_.device());
    for (const int s : {input_of(i), output_of(i)}) {
      const StatisticPlan& plan = statistic(s).plan;
      if (plan.numel() > 0 && owns(i) && options_.staleness == Staleness::adaptive)
        statistic(s).history = StatisticHistory(ctx_, plan.shape, options_.dtype);
    }
  }
}

void Engine::make_exchanges(std::int64_t vote_tail) {
  // A leaves in forward order; G and the BatchNorm Fisher in backward order, hence later.
  std::vector<Slot> a_slots, g_slots, scale_slots;
  const int count = layers();
  const auto add = [&](std::vector<Slot>& slots, int index, int time) {
    Statistic& s = statistic(index);
    if (s.plan.numel() == 0) return;
    s.slot = static_cast<int>(slots.size());
    slots.push_back({owner(index / 2), s.plan.numel(), time});
  };
  for (int i = 0; i < count; ++i) add(a_slots, input_of(i), i);
  for (int i = count - 1; i >= 0; --i) {
    const int time = 2 * count - 1 - i;
    add(g_slots, output_of(i), time);
    if (options_.inverse != InverseMethod::ekfac || !has_factors(spec(i))) continue;
    at(i).scale_slot = static_cast<int>(scale_slots.size());
    scale_slots.push_back(
        {owner(i), factor_groups(spec(i)) * g_dim(spec(i)) * a_dim(spec(i)), time});
  }
  a_due_.resize(a_slots.size());
  g_due_.resize(g_slots.size());
  scales_due_.resize(scale_slots.size());
  ExchangeOptions exchange{.recipients = Recipients::owners,
                           .dtype = options_.dtype,
                           .bucket_bytes = options_.bucket_bytes,
                           .wire = options_.statistics_wire,
                           .past_wire = nonfinite_,
                           .filled_on = records_on_};
  a_exchange_.emplace(ctx_, grid_, "statistics A", std::move(a_slots), exchange);
  exchange.tail = vote_tail;
  g_exchange_.emplace(ctx_, grid_, "statistics G", std::move(g_slots), exchange);
  exchange.tail = 0;
  exchange.recipients = Recipients::all;
  if (!scale_slots.empty())
    scale_exchange_.emplace(ctx_, grid_, "scales of EKFAC", std::move(scale_slots), exchange);
}

void Engine::plan_timetable() {
  std::vector<TimetableEntry> entries(statistics_.size());
  for (int i = 0; i < std::ssize(statistics_); ++i) {
    TimetableEntry& e = entries[index_of(i)];
    const StatisticPlan& plan = statistic(i).plan;
    e.exists = plan.numel() > 0;
    e.owner = owner(i / 2);
    e.inverse_flops = plan.inverse_flops;
    e.inverted = plan.factor.is_set();
    if (e.exists) reports_.push_back({.layer = i / 2, .kind = plan.kind});
  }
  timetable_ = Timetable(std::move(entries));
  timetable_.configure(options_);
}

void Engine::set_damping(double damping) {
  CurvatureOptions changed = options_;
  changed.damping = damping;
  changed.validate();
  if (damping == options_.damping) return;
  options_ = std::move(changed);
  timetable_.damping_changed();
  for (Layer& layer : layers_)
    for (Factor* factor : {&layer.curvature.a, &layer.curvature.g})
      factor->stale = factor->statistics > 0;
}

bool Engine::set_curvature(const CurvatureSettings& settings) {
  const bool same_intervals = settings.statistics_interval == options_.statistics_interval &&
                              settings.inverse_interval == options_.inverse_interval;
  const int micro_batches =
      settings.micro_batches > 0 ? settings.micro_batches : options_.micro_batches;
  if (same_intervals && settings.damping == options_.damping &&
      micro_batches == options_.micro_batches)
    return false;
  CurvatureOptions changed = options_;
  changed.statistics_interval = settings.statistics_interval;
  changed.inverse_interval = settings.inverse_interval;
  changed.micro_batches = micro_batches;
  changed.damping = settings.damping;
  changed.validate();
  changed.damping = options_.damping;
  options_ = std::move(changed);
  if (!same_intervals) timetable_.configure(options_);
  set_damping(settings.damping);
  return !same_intervals;
}

std::string Engine::describe(KeptParameters kept, std::vector<NamedBytes> buffers) const {
  std::vector<double> seconds;
  for (const LayerSpec& spec : specs_)
    seconds.push_back(layer_seconds(costs_, spec, options_, ctx_.device()));
  NamedBytes staging{"staging of statistics"}, wire{"wire of statistics"};
  for (const auto* exchange : {&a_exchange_, &g_exchange_, &scale_exchange_})
    if (*exchange) {
      staging.bytes += static_cast<std::int64_t>((*exchange)->staging_bytes());
      wire.bytes += static_cast<std::int64_t>((*exchange)->wire_bytes());
    }
  buffers.insert(buffers.begin(), {std::move(staging), std::move(wire)});
  if (ctx_.device().is_cuda()) add_temporary(buffers);
  return describe_assignment(names_, specs_, owners_,
                             {.world_size = comm_->size(),
                              .workers = grid_.workers,
                              .curvature = options_,
                              .device = ctx_.device(),
                              .seconds = seconds,
                              .kept = kept,
                              .buffers = buffers});
}

/// What there is by now: all of it is made when it is first needed.
void Engine::add_temporary(std::vector<NamedBytes>& buffers) const {
  std::size_t scratch = ctx_.scratch_bytes(), library = ctx_.library_bytes();
  if (records_on_ != &ctx_) {
    scratch += records_on_->scratch_bytes();
    library += records_on_->library_bytes();
  }
  buffers.push_back({"scratch", static_cast<std::int64_t>(scratch)});
  buffers.push_back({"scratch of rebuilds", workers_.scratch_bytes()});
  buffers.push_back({"workspaces of cuBLAS", static_cast<std::int64_t>(library)});
  buffers.push_back({"workspaces of cuBLAS for rebuilds", workers_.library_bytes()});
}

bool Engine::statistics_due() const { return statistics_.empty() || timetable_.any_due(); }
bool Engine::input_due(LayerId layer) const {
  const int i = checked(layer, "wants_input");
  return statistics_.empty() ? has_factors(spec(i)) : timetable_.due(input_of(i));
}
bool Engine::output_due(LayerId layer) const {
  const int i = checked(layer, "wants_grad_output");
  return statistics_.empty() ? !is_plain(spec(i)) : timetable_.due(output_of(i));
}

void Engine::begin_step() {
  if (!timetable_.any_due()) return;
  for (int i = 0; i < std::ssize(statistics_); ++i) {
    if (statistic(i).slot < 0) continue;
    std::vector<bool>& due = i % 2 == 0 ? a_due_ : g_due_;
    due[index_of(statistic(i).slot)] = timetable_.due(i);
    exchange_of(i).set_magnitude(statistic(i).slot, timetable_.entry(i).exponent);
  }
  a_exchange_->begin(a_due_);
  g_exchange_->begin(g_due_);
  if (!scale_exchange_) return;
  for (int i = 0; i < layers(); ++i)
    if (at(i).scale_slot >= 0) scales_due_[index_of(at(i).scale_slot)] = scales_due(i);
  scale_exchange_->begin(scales_due_);
}

bool Engine::scales_due(int layer) const {
  const LayerCurvature& c = at(layer).curvature;
  return at(layer).scale_slot >= 0 && timetable_.due(output_of(layer)) && c.a.good && c.g.good;
}

void Engine::add_active(std::vector<Exchange*>& active) {
  if (!timetable_.any_due()) return;
  active.push_back(&*a_exchange_);
  if (scale_exchange_) active.push_back(&*scale_exchange_);
  active.push_back(&*g_exchange_);
}

void Engine::require_records(bool forgive) {
  for (int i = 0; i < std::ssize(statistics_); ++i) {
    if (!timetable_.due(i)) continue;
    const Statistic& s = statistic(i);
    if (s.records < options_.micro_batches) {
      DKFAC_CHECK(forgive, "[step] layer '", name(i / 2), "' has ", s.records, " of ",
                  options_.micro_batches, " ",
                  s.plan.kind == StatisticKind::a   ? "record_input"
                  : s.plan.kind == StatisticKind::g ? "record_grad_output"
                                                    : "record_batch_norm",
                  "; record every layer where wants_input() and wants_grad_output() say so");
      if (s.records == 0) ops::fill(ctx_, slot_of(i), 0);
    }
    exchange_of(i).mark_filled(s.slot);
    if (i % 2 == 0 || !scales_due(i / 2)) continue;
    const int slot = at(i / 2).scale_slot;
    if (at(i / 2).scale_records == 0) ops::fill(ctx_, scale_exchange_->slot(slot), 0);
    scale_exchange_->mark_filled(slot);
  }
}

void Engine::fill_ballot(Ballot& ballot) const {
  ballot.statistic_count = nonfinite_;
  ballot.failed_statistic = failed_statistic_;
  ballot.no_samples = timetable_.any_due();
  for (int i = 0; i < std::ssize(statistics_); ++i)
    if (timetable_.due(i) && statistic(i).samples > 0) ballot.no_samples = false;
  for (const double setting : {options_.damping, static_cast<double>(options_.statistics_interval),
                               static_cast<double>(options_.inverse_interval)})
    ballot.hash = mix_hash(ballot.hash, setting);
}

void Engine::apply(int layer, TensorView weight, TensorView bias) {
  const PhaseTimer timer(seconds_.precondition);
  apply_curvature(ctx_, spec(layer), options_, at(layer).curvature, weight, bias);
}

bool Engine::rebuilt(int layer, StatisticKind kind) const {
  const int i = kind == StatisticKind::a ? input_of(layer) : output_of(layer);
  return timetable_.entry(i).inverted ? rebuild_due(i) : timetable_.due(i);
}

void Engine::throw_failure(const Outcome& outcome) const {
  // Every rank is here, so owners can tell the others what failed; sums of a vote cannot name two.
  std::string mine;
  if (failed_statistic_ >= 0) {
    const int layer = failed_statistic_ / 2;
    const StatisticKind kind = statistic(failed_statistic_).plan.kind;
    mine = detail::concat(kind == StatisticKind::a   ? "factor A"
                          : kind == StatisticKind::g ? "factor G"
                                                     : "the BatchNorm Fisher",
                          " of layer '", name(layer), "', owned by rank ", comm_->rank(), ", ",
                          failed_at_, " more than ", options_.max_failed_refreshes,
                          " times in a row at damping ", options_.damping,
                          "; raise the damping, or set CurvatureOptions::dtype to f64");
    if (!at(layer).saved_as.empty())
      mine += detail::concat("; it has been saved as ", at(layer).saved_as);
  }
  for (const std::string& said : comm::all_gather_strings(*comm_, mine)) {
    if (said.empty()) continue;
    const int others = outcome.result.numeric_failure - 1;
    throw NumericError(detail::concat(
        "[inverse] ", said, others > 0 ? detail::concat(" (as on ", others, " more ranks)") : ""));
  }
  throw NumericError("[inverse] a factor could not be inverted; raise the damping");
}

}  // namespace dkfac::kfac
