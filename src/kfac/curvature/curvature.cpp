#include "kfac/curvature/curvature.h"

#include <algorithm>
#include <utility>

#include "core/shared/activity_timer.h"
#include "core/shared/index.h"
#include "kfac/curvature/read_factors.h"
#include "kfac/distribution/memory_need.h"
#include "kfac/distribution/plan_owners.h"

namespace dkfac::kfac {
namespace {

/// The layers as a plan of all ranks.
struct Plan {
  explicit Plan(const LayerTable& layers) : layers_(layers) {
    for (const auto& block : layers.blocks) {
      names.push_back(block->name);
      specs.push_back(block->spec);
      owners.push_back(block->owners);
    }
  }
  [[nodiscard]] PlannedLayers planned() const {
    return {.names = names,
            .specs = specs,
            .owners = owners,
            .options = layers_.options,
            .workers = layers_.grid.workers,
            .ranks = layers_.comm->size(),
            .device = layers_.ctx.device()};
  }

  std::vector<std::string> names;
  std::vector<LayerSpec> specs;
  std::vector<LayerOwners> owners;

 private:
  const LayerTable& layers_;
};

/// Appends the temporary memory allocated so far: all of it is allocated on first use.
void add_temporary(const Context& ctx, const RecordStream& records, const RefreshWorkers& workers,
                   std::vector<NamedBytes>& buffers) {
  std::size_t scratch = ctx.scratch_bytes(), library = ctx.library_bytes();
  if (const Context* apart = records.apart()) {
    scratch += apart->scratch_bytes();
    library += apart->library_bytes();
  }
  buffers.push_back({"scratch", static_cast<std::int64_t>(scratch)});
  buffers.push_back({"scratch of rebuilds", workers.scratch_bytes()});
  buffers.push_back({"workspaces of cuBLAS", static_cast<std::int64_t>(library)});
  buffers.push_back({"workspaces of cuBLAS for rebuilds", workers.library_bytes()});
}

/// Adds an accepted step's work on statistics and inverses, spent and saved.
void add_work(const LayerTable& layers, StepReport& report) {
  const CurvatureOptions& options = layers.options;
  const std::size_t element =
      size_of(options.communication.statistics_wire.value_or(options.dtype));
  for (StatisticId id = 0; id < layers.ids(); ++id) {
    const Statistic& s = layers.statistic(id);
    if (layers.due(id)) {
      report.flops += s.step_flops;
    } else {
      if (!layers.has_local_statistics())
        report.bytes_skipped += static_cast<std::uint64_t>(s.plan.numel()) * element;
      report.flops_skipped += s.flops;
    }
    (layers.schedule.rebuild_due(id) ? report.flops : report.flops_skipped) +=
        layers.schedule.entry(id).inverse_flops;
  }
}

/// One kind of damping replaces the other.
void choose_damping(const CurvatureSettings& settings, CurvatureOptions& options) {
  if (!settings.damping && !settings.relative_damping) return;
  DKFAC_CHECK(!settings.damping || !settings.relative_damping,
              "[set_curvature] damping and relative_damping are both set; give one of them, which "
              "replaces the other");
  DKFAC_CHECK(!settings.damping || *settings.damping > 0, "[set_curvature] damping is ",
              *settings.damping, "; it must be > 0, or relative_damping set in its place");
  options.damping = settings.damping.value_or(0);
  options.relative_damping =
      settings.relative_damping.value_or(CurvatureOptions{}.relative_damping);
}

void visit_statistic(StateVisitor& visitor, Statistic& s) {
  visitor.number(s.name + "_has_range", StateKind::replicated, s.has_range);
  visitor.real(s.name + "_flops", StateKind::any_rank, s.flops);
  if (!s.history.is_set()) return;
  visitor.number(s.name + "_known", StateKind::owned, s.history.known());
  visitor.tensor(s.name + "_last", StateKind::owned, s.history.last());
  visitor.tensor(s.name + "_before_last", StateKind::owned, s.history.before());
}

/// Visits the width of the blocks that some factors are kept in, -1 where none are: averages and
/// inverses of another width cannot be read.
void visit_block_width(StateVisitor& visitor, const LayerTable& layers) {
  const bool any = std::ranges::any_of(
      layers.statistics, [](const Statistic& s) { return s.plan.factor.has_blocks(); });
  const int here = any ? layers.options.inverse.block_width : -1;
  int saved = here;
  visitor.number("block_width", StateKind::replicated, saved);
  const auto text = [](int width) {
    return width > 0 ? "diagonal blocks of " + std::to_string(width) : "whole factors";
  };
  DKFAC_CHECK(saved == here, "[state] was saved with ", text(saved), ", and here are ", text(here),
              "; set block_width to ", saved, " to continue");
}

}  // namespace

Curvature::Curvature(Context& ctx, std::shared_ptr<comm::Communicator> comm,
                     CurvatureOptions options, ContextOptions context)
    : layers_(ctx, std::move(comm), std::move(options)),
      recorder_(layers_, context),
      rebuilds_(layers_),
      decisions_(layers_),
      chooser_(layers_) {
  const StatisticsOptions& statistics = layers_.options.statistics;
  layers_.options.validate();
  // Later a schedule may set it to 1 for some steps.
  DKFAC_CHECK(
      statistics.new_weight < 1 || statistics.average_start == AverageStart::first,
      "[curvature options] statistics.average_start is set with statistics.new_weight 1, "
      "with which every statistic replaces what an average began at; leave one of them out");
  chooser_.start();
}

void Curvature::add_layer(std::string name, LayerSpec spec) {
  layers_.blocks.push_back(make_block(std::move(name), std::move(spec)));
}

void Curvature::prepare(const comm::WorkerGrid& grid, std::int64_t trailer) {
  layers_.grid = grid;
  const int ranks = layers_.comm->size();
  DKFAC_CHECK(options().inverse.method != InverseMethod::ekfac || grid.workers == ranks,
              "[curvature options] inverse is ekfac with grad_worker_fraction ",
              options().distribution.grad_worker_fraction, " on ", ranks,
              " ranks; every rank projects its gradients on the eigenvectors of all layers, so set "
              "grad_worker_fraction to 1");
  assign_owners();
  const Plan plan(layers_);
  check_memory(layers_.ctx, grid, plan.planned());
  notice_ = slow_rebuild(plan.planned(), costs_);
  for (int i = 0; i < layers(); ++i)
    if (const LayerShare share = layers_.share_of(i); share.any())
      layers_.layer(i).allocate(layers_.ctx, options(), share);
  plan_statistics(layers_);
  for (const Statistic& s : layers_.statistics)
    reports_.push_back({.layer = s.layer, .kind = s.traits.kind});
  recorder_.prepare(trailer);
  rebuilds_.prepare();
  decisions_.prepare();
  chooser_.prepare();
}

void Curvature::assign_owners() {
  const std::vector<LayerSpec> specs = Plan(layers_).specs;
  layers_.options = with_block_width(options(), specs);
  Context& ctx = layers_.ctx;
  if (options().distribution.calibrate)
    costs_ =
        kfac::calibrate(*layers_.comm, options(), measure_on(ctx, options().dtype), ctx.device());
  const std::vector<LayerOwners> owners =
      plan_owners(specs, options(), costs_, layers_.comm->size(), ctx.device());
  for (int i = 0; i < layers(); ++i) layers_.layer(i).owners = owners[index_of(i)];
}

bool Curvature::set_curvature(const CurvatureSettings& settings) {
  const CurvatureOptions& now = options();
  CurvatureOptions changed = now;
  changed.refresh = chooser_.with(settings);
  changed.statistics.micro_batches = settings.micro_batches.value_or(now.statistics.micro_batches);
  changed.statistics.new_weight = settings.new_weight.value_or(now.statistics.new_weight);
  choose_damping(settings, changed);
  const double damping = changed.damping, relative = changed.relative_damping;
  const bool same_intervals =
      changed.refresh.statistics_interval == now.refresh.statistics_interval &&
      changed.refresh.inverse_interval == now.refresh.inverse_interval;
  const bool same_records =
      same_intervals && changed.statistics.micro_batches == now.statistics.micro_batches;
  const bool same_weight = changed.statistics.new_weight == now.statistics.new_weight;
  if (same_records && same_weight && damping == now.damping && relative == now.relative_damping) {
    chooser_.set(settings);  // Which may ask for another choice.
    return false;
  }
  for (const Statistic& s : layers_.statistics)
    DKFAC_CHECK(same_records || s.records == 0, "[set_curvature] comes after the record of '",
                s.name,
                "' in this step; change intervals and micro-batches before the first record");
  for (const Statistic& s : layers_.statistics)
    DKFAC_CHECK(same_weight || !s.plan.factor.has_rows(),
                "[set_curvature] new_weight changes, but '", s.name,
                "' is kept as the rows of one statistic; set statistics.low_rank to false");
  changed.validate();
  changed.damping = now.damping;
  changed.relative_damping = now.relative_damping;
  changed.refresh = now.refresh;
  layers_.options = std::move(changed);
  chooser_.set(settings);
  change_damping(damping, relative);
  return !same_intervals;
}

void Curvature::change_damping(double damping, double relative) {
  CurvatureOptions changed = options();
  if (damping == changed.damping && relative == changed.relative_damping) return;
  changed.damping = damping;
  changed.relative_damping = relative;
  layers_.options = std::move(changed);
  layers_.schedule.damping_changed();
  for (const auto& block : layers_.blocks) block->damping_changed();
  rebuilds_.damping_changed();
}

std::string Curvature::describe(KeptParameters kept, std::vector<NamedBytes> buffers) const {
  const Device device = layers_.ctx.device();
  const Plan plan(layers_);
  std::vector<FactorLoads> seconds;
  for (const LayerSpec& spec : plan.specs)
    seconds.push_back(factor_seconds(costs_, spec, options(), device));
  buffers.insert(buffers.begin(),
                 {NamedBytes{"staging of statistics", recorder_.sums().staging_bytes()},
                  NamedBytes{"wire of statistics", recorder_.sums().wire_bytes()}});
  buffers.push_back({"shared inverses", rebuilds_.sharing_bytes()});
  if (device.is_cuda())
    add_temporary(layers_.ctx, recorder_.stream(), rebuilds_.workers(), buffers);
  return describe_assignment(plan.names, plan.specs, plan.owners,
                             {.world_size = layers_.comm->size(),
                              .workers = layers_.grid.workers,
                              .curvature = options(),
                              .device = device,
                              .seconds = seconds,
                              .kept = kept,
                              .buffers = buffers}) +
         (notice_.empty() ? "" : notice_ + "\n");
}

LayerFactors Curvature::read_factors(LayerId id) {
  const int index = layers_.checked(id, "read_factors");
  LayerFactors out;
  if (!layer(index).has_curvature()) return out;
  out.owner = layer(index).owners.layer;
  rebuilds_.workers().join();
  if (layers_.share_of(index).any())
    copy_factors(layers_.ctx, layers_.layer(index).curvature(), out);
  return out;
}

void Curvature::visit_state(StateVisitor& visitor) {
  recorder_.stream().join();
  rebuilds_.finish();
  visit_block_width(visitor, layers_);
  std::vector<std::string> names;
  for (const Statistic& s : layers_.statistics) names.push_back(s.name);
  chooser_.visit_state(visitor);
  layers_.schedule.visit_state(visitor, names);
  recorder_.visit_state(visitor);
  for (Statistic& s : layers_.statistics) visit_statistic(visitor, s);
  for (int i = 0; i < layers(); ++i)
    if (const LayerShare share = layers_.share_of(i); share.any())
      layers_.layer(i).visit_state(visitor, share, options().inverse.max_failed_refreshes);
  if (layers_.ctx.device().is_cuda())
    for (Statistic& s : layers_.statistics)
      s.foreign = layers_.layer(s.layer).drop_foreign(layers_.ctx, s.plan.kind);
  recorder_.drop_records();
  rebuilds_.find_failed();
}

void Curvature::raise_flags(comm::FlagMessage& message) const {
  recorder_.raise_flags(message);
  rebuilds_.raise_flags(message);
  for (const double setting :
       {options().damping, options().relative_damping,
        static_cast<double>(options().refresh.statistics_interval),
        static_cast<double>(options().refresh.inverse_interval),
        static_cast<double>(options().statistics.micro_batches), options().statistics.new_weight})
    message.hash = comm::mix_hash(message.hash, setting);
}

void Curvature::request() {
  rebuilds_.request();
  recorder_.request();
  decisions_.request(recorder_);
  chooser_.request();
}

void Curvature::require_no_failure(const comm::AgreedFlags& agreed) {
  recorder_.require_samples(agreed);
  rebuilds_.require_no_failure(agreed);
}

void Curvature::collect(const comm::AgreedFlags& agreed, StepReport& report) {
  rebuilds_.collect(agreed, report);
}

bool Curvature::update(StepReport& report) {
  if (layers_.schedule.any_due()) update_averages(report);
  const Metered metered(layers_.meter, StepPart::inverses);
  return rebuilds_.refresh(report);
}

void Curvature::update_averages(StepReport& report) {
  const ActivityTimer timer(report.seconds.update), part(report.seconds.average);
  const Metered metered(layers_.meter, StepPart::statistics);
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    if (!layers_.due(id) || !layers_.averaged_here(id)) continue;
    Statistic& s = layers_.statistic(id);
    const TensorView sum = recorder_.sums().of(id);
    const bool merged = layers_.layer(s.layer).merge(layers_.ctx, options(), s.plan.kind, sum,
                                                     recorder_.finite(id));
    report.failed_factors += merged ? 0 : 1;
    // A rejected statistic does not enter the history.
    if (merged && s.history.is_set()) s.history.keep(layers_.ctx, sum.reshape(s.plan.shape));
  }
  // Before their eigenvectors are replaced.
  for (int i = 0; i < layers(); ++i) {
    const ScaleRecords* scales = layers_.layer(i).scales();
    if (scales == nullptr || scales->records == 0) continue;
    const bool merged = merge_scales(layers_.ctx, options(), recorder_.sums().of_scales(i),
                                     layers_.layer(i).curvature(), recorder_.scales_finite(i));
    report.failed_factors += merged || !owns(i) ? 0 : 1;
  }
  decisions_.collect();
  report.statistics_refreshed = true;
}

void Curvature::precondition(std::span<const LayerDirection> layers, ProductBatch& batch) {
  const ActivityTimer timer(precondition_seconds_);
  gradients_.clear();
  for (const LayerDirection& d : layers)
    gradients_.push_back(layer(d.layer).gradient(d.weight, d.bias));
  apply_curvature(layers_.ctx, options(), gradients_, batch);
}

void Curvature::finish(const StepAgreement& agreement, StepReport& report) {
  const bool accepted = agreement.may_update();
  report.damping = options().damping;
  report.scratch_growths +=
      rebuilds_.workers().scratch_growths() + recorder_.stream().scratch_growths();
  report.seconds.precondition += std::exchange(precondition_seconds_, 0);
  if (accepted) add_work(layers_, report);
  recorder_.finish(accepted, report);
  report_statistics(agreement, report);
  chooser_.finish(accepted, report);
}

/// Ends the step of the schedule, and reports it.
void Curvature::report_statistics(const StepAgreement& agreement, StepReport& report) {
  const bool accepted = agreement.may_update();
  RefreshSchedule& schedule = layers_.schedule;
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    if (accepted) layers_.statistic(id).foreign = false;
    reports_[index_of(id)].refreshed = accepted && layers_.due(id);
  }
  if (accepted) schedule.advance(decisions_.all());
  // A part may have been out of the range of its wire type; no other flag reports magnitudes.
  if (agreement.nonfinite_statistic > 0) schedule.forget_exponents();
  for (StatisticId id = 0; id < layers_.ids(); ++id) schedule.describe(id, reports_[index_of(id)]);
  report.statistics = reports_;
}

}  // namespace dkfac::kfac
