#include "kfac/curvature/curvature.h"

#include <utility>

#include "dkfac/core/ops.h"

#include "core/shared/index.h"
#include "kfac/distribution/memory_need.h"

namespace dkfac::kfac {

Curvature::Curvature(Context& ctx, std::shared_ptr<comm::Communicator> comm,
                     CurvatureOptions options, ContextOptions context)
    : ctx_(ctx),
      comm_(std::move(comm)),
      options_(std::move(options)),
      records_(ctx, options_.statistics.records_valid_until_step, context),
      workers_(ctx, options_.refresh.delay_inverses ? Priority::low : ctx.priority()) {
  options_.validate();
}

void Curvature::add_layer(std::string name, LayerSpec spec) {
  layers_.push_back(make_block(std::move(name), std::move(spec)));
}

int Curvature::checked(LayerId id, const char* operation) const {
  const int index = static_cast<int>(id);
  DKFAC_CHECK(index >= 0 && index < layers(), "[", operation, "] layer id ", index,
              " does not exist; add_layer() returned 0 to ", layers() - 1);
  return index;
}

void Curvature::prepare(const comm::WorkerGrid& grid, std::int64_t trailer) {
  grid_ = grid;
  DKFAC_CHECK(options_.inverse.method != InverseMethod::ekfac || grid_.workers == comm_->size(),
              "[curvature options] inverse is ekfac with grad_worker_fraction ",
              options_.distribution.grad_worker_fraction, " on ", comm_->size(),
              " ranks; every rank projects its gradients on the eigenvectors of all layers, so set "
              "grad_worker_fraction to 1");
  std::vector<LayerLoad> loads;
  for (const auto& block : layers_) loads.push_back(layer_load(block->spec, options_.dtype));
  if (options_.distribution.calibrate) {
    // Only proportions matter, so seconds may replace flops for all layers.
    costs_ = kfac::calibrate(*comm_, options_, measure_on(ctx_, options_.dtype), ctx_.device());
    for (std::size_t i = 0; i < layers_.size(); ++i)
      loads[i].flops = layer_seconds(costs_, layers_[i]->spec, options_, ctx_.device());
  }
  const std::vector<int> owners = assign(loads, comm_->size());
  for (int i = 0; i < layers(); ++i) at(i).owner = owners[index_of(i)];
  check_size();
  for (int i = 0; i < layers(); ++i)
    if (works(i)) at(i).allocate(ctx_, options_, owns(i));
  nonfinite_ = Tensor::zeros(ctx_, {1});
  make_statistics();
  make_reductions(trailer);
  plan_refresh_schedule();
  for (const Statistic& s : statistics_)
    if (works(s.layer)) at(s.layer).add_shared(s.plan.kind, parts_);
  sharing_.emplace(ctx_, grid_, options_.dtype, parts_);
  const std::int64_t count = statistics();
  Context host;
  ranges_ = Tensor::zeros(host, {count});
  new_ranges_ = comm::HostDevicePair(ctx_, {count}, DType::f32);
  record_ranges_ = Tensor::zeros(ctx_, {2});
  underflow_ = comm::HostDevicePair(ctx_, {1}, DType::f32);
  finite_ = comm::HostDevicePair(ctx_, {count + layers()}, DType::f64);
  stages_ = comm::HostDevicePair(ctx_, {count}, DType::i32);
  decision_numbers_ = comm::HostDevicePair(ctx_, {count * kNumbersPerDecision}, DType::f64);
  lack_inverse_ = comm::HostDevicePair(ctx_, {layers()}, DType::f64);
}

void Curvature::check_size() {
  std::vector<std::string> names;
  std::vector<LayerSpec> specs;
  std::vector<int> owners;
  for (const auto& block : layers_) {
    names.push_back(block->name);
    specs.push_back(block->spec);
    owners.push_back(block->owner);
  }
  const PlannedLayers plan{.names = names,
                           .specs = specs,
                           .owners = owners,
                           .options = options_,
                           .workers = grid_.workers,
                           .ranks = comm_->size(),
                           .device = ctx_.device()};
  check_memory(ctx_, grid_, plan);
  notice_ = slow_rebuild(plan, costs_);
}

void Curvature::make_statistics() {
  for (int i = 0; i < layers(); ++i) {
    CurvatureBlock& block = at(i);
    for (const StatisticTraits& traits : block.statistics()) {
      (traits.kind == StatisticKind::a ? block.a : block.g) = statistics();
      Statistic s{.name = block.name + traits.suffix,
                  .traits = traits,
                  .layer = i,
                  .owner = block.owner,
                  .plan = plan_statistic(block.spec, options_, traits.kind, ctx_.device())};
      if (owns(i) && options_.refresh.staleness == Staleness::adaptive)
        s.history = StatisticHistory(ctx_, s.plan.shape, options_.dtype);
      reports_.push_back({.layer = i, .kind = traits.kind});
      statistics_.push_back(std::move(s));
    }
    if (block.a == kNoStatistic || block.g == kNoStatistic) continue;
    statistic(block.a).partner = block.g;
    statistic(block.g).partner = block.a;
  }
  decisions_.resize(statistics_.size());
}

void Curvature::make_reductions(std::int64_t trailer) {
  // A is reduced in forward order; G and the BatchNorm Fisher in backward order, hence later.
  std::vector<comm::Slot> a_slots, g_slots, scale_slots;
  const int count = layers();
  const auto add = [this](std::vector<comm::Slot>& slots, StatisticId id, int time) {
    if (id == kNoStatistic) return;
    Statistic& s = statistic(id);
    s.slot = static_cast<int>(slots.size());
    slots.push_back({s.owner, s.plan.numel(), time});
  };
  for (int i = 0; i < count; ++i) add(a_slots, at(i).a, i);
  for (int i = count - 1; i >= 0; --i) {
    const int time = 2 * count - 1 - i;
    CurvatureBlock& block = at(i);
    add(g_slots, block.g, time);
    // With EKFAC every rank preconditions every layer, so all ranks create the same slots.
    if (block.scales_numel() == 0) continue;
    block.scale_slot = static_cast<int>(scale_slots.size());
    scale_slots.push_back({block.owner, block.scales_numel(), time});
  }
  a_due_.resize(a_slots.size());
  g_due_.resize(g_slots.size());
  scales_due_.resize(scale_slots.size());
  comm::BucketedReduceOptions exchange{.recipients = comm::Recipients::owners,
                                       .dtype = options_.dtype,
                                       .bucket_bytes = options_.communication.bucket_bytes,
                                       .wire = options_.communication.statistics_wire,
                                       .parts_below_sum = true,
                                       .past_wire = nonfinite_,
                                       .filled_on = &records_on()};
  a_reduce_.emplace(ctx_, grid_, "statistics A", std::move(a_slots), exchange);
  exchange.trailer = trailer;
  g_reduce_.emplace(ctx_, grid_, "statistics G", std::move(g_slots), exchange);
  exchange.trailer = 0;
  exchange.recipients = comm::Recipients::all;
  if (exchange.wire == DType::f16) exchange.wire.reset();  // Scales have no magnitudes.
  if (!scale_slots.empty())
    scale_reduce_.emplace(ctx_, grid_, "scales of EKFAC", std::move(scale_slots), exchange);
}

void Curvature::plan_refresh_schedule() {
  std::vector<RefreshEntry> entries;
  for (const Statistic& s : statistics_)
    entries.push_back({.inverted = s.plan.factor.is_set(),
                       .layer = s.layer,
                       .owner = s.owner,
                       .inverse_flops = inverse_flops(s.plan.factor),
                       .intervals = {},
                       .damped = s.plan.factor.form != FactorForm::eigen});
  schedule_ = RefreshSchedule(std::move(entries));
  schedule_.configure(options_);
}

void Curvature::set_damping(double damping) {
  CurvatureOptions changed = options_;
  changed.damping = damping;
  changed.validate();
  if (damping == options_.damping) return;
  options_ = std::move(changed);
  schedule_.damping_changed();
  for (const auto& block : layers_) block->damping_changed();
  forgive_failures();
}

bool Curvature::set_curvature(const CurvatureSettings& settings) {
  const RefreshOptions& refresh = options_.refresh;
  const int statistics_interval =
      settings.statistics_interval.value_or(refresh.statistics_interval);
  const int inverse_interval = settings.inverse_interval.value_or(refresh.inverse_interval);
  const int micro_batches = settings.micro_batches.value_or(options_.statistics.micro_batches);
  const double damping = settings.damping.value_or(options_.damping);
  const bool same_intervals = statistics_interval == refresh.statistics_interval &&
                              inverse_interval == refresh.inverse_interval;
  const bool same_records = same_intervals && micro_batches == options_.statistics.micro_batches;
  if (same_records && damping == options_.damping) return false;
  for (const Statistic& s : statistics_)
    DKFAC_CHECK(same_records || s.records == 0, "[set_curvature] comes after the record of '",
                s.name,
                "' in this step; change intervals and micro-batches before the first record");
  CurvatureOptions changed = options_;
  changed.refresh.statistics_interval = statistics_interval;
  changed.refresh.inverse_interval = inverse_interval;
  changed.statistics.micro_batches = micro_batches;
  changed.damping = damping;
  changed.validate();
  changed.damping = options_.damping;
  options_ = std::move(changed);
  if (!same_intervals) schedule_.configure(options_);
  set_damping(damping);
  return !same_intervals;
}

std::string Curvature::describe(KeptParameters kept, std::vector<NamedBytes> buffers) const {
  std::vector<std::string> names;
  std::vector<LayerSpec> specs;
  std::vector<int> owners;
  std::vector<double> seconds;
  for (const auto& block : layers_) {
    names.push_back(block->name);
    specs.push_back(block->spec);
    owners.push_back(block->owner);
    seconds.push_back(layer_seconds(costs_, block->spec, options_, ctx_.device()));
  }
  NamedBytes staging{"staging of statistics"}, wire{"wire of statistics"};
  for (const auto* exchange : {&a_reduce_, &g_reduce_, &scale_reduce_})
    if (*exchange) {
      staging.bytes += static_cast<std::int64_t>((*exchange)->staging_bytes());
      wire.bytes += static_cast<std::int64_t>((*exchange)->wire_bytes());
    }
  buffers.insert(buffers.begin(), {std::move(staging), std::move(wire)});
  buffers.push_back({"shared inverses", static_cast<std::int64_t>(sharing_->bytes())});
  if (ctx_.device().is_cuda()) add_temporary(buffers);
  return describe_assignment(names, specs, owners,
                             {.world_size = comm_->size(),
                              .workers = grid_.workers,
                              .curvature = options_,
                              .device = ctx_.device(),
                              .seconds = seconds,
                              .kept = kept,
                              .buffers = buffers}) +
         (notice_.empty() ? "" : notice_ + "\n");
}

/// Appends the temporary memory allocated so far: all of it is allocated on first use.
void Curvature::add_temporary(std::vector<NamedBytes>& buffers) const {
  std::size_t scratch = ctx_.scratch_bytes(), library = ctx_.library_bytes();
  if (const Context* apart = records_.apart()) {
    scratch += apart->scratch_bytes();
    library += apart->library_bytes();
  }
  buffers.push_back({"scratch", static_cast<std::int64_t>(scratch)});
  buffers.push_back({"scratch of rebuilds", workers_.scratch_bytes()});
  buffers.push_back({"workspaces of cuBLAS", static_cast<std::int64_t>(library)});
  buffers.push_back({"workspaces of cuBLAS for rebuilds", workers_.library_bytes()});
}

}  // namespace dkfac::kfac
