#include "kfac/curvature/statistic_sums.h"

#include <utility>

#include "core/shared/index.h"

namespace dkfac::kfac {

StatisticSums::StatisticSums(LayerTable& layers, std::int64_t trailer, TensorView wire_overflows,
                             Context& fill_context)
    : layers_(layers) {
  // A is reduced in forward order; G and the Fisher of normalisations in backward order, hence
  // later.
  std::vector<comm::Slot> a_slots, g_slots, scale_slots;
  const int count = layers.layers();
  if (layers.has_local_statistics()) local_.resize(index_of(layers.ids()));
  const auto add = [&layers, this](std::vector<comm::Slot>& slots, StatisticId id, int time) {
    if (id == kNoStatistic) return;
    Statistic& s = layers.statistic(id);
    if (!local_.empty()) {
      if (layers.averaged_here(id))
        local_[index_of(id)] = Tensor::zeros(layers.ctx, {s.plan.numel()}, layers.options.dtype);
      return;
    }
    s.slot = static_cast<int>(slots.size());
    slots.push_back({s.owner, s.plan.numel(), time});
  };
  for (int i = 0; i < count; ++i) add(a_slots, layers.layer(i).a, i);
  for (int i = count - 1; i >= 0; --i) {
    const int time = 2 * count - 1 - i;
    CurvatureBlock& block = layers.layer(i);
    add(g_slots, block.g, time);
    // With EKFAC every rank preconditions every layer, so all ranks create the same slots.
    ScaleRecords* const scales = block.scales();
    if (scales == nullptr) continue;
    scales->slot = static_cast<int>(scale_slots.size());
    scale_slots.push_back({block.owners.layer, block.scales_numel(), time});
  }
  a_due_.resize(a_slots.size());
  g_due_.resize(g_slots.size());
  scales_due_.resize(scale_slots.size());
  const CurvatureOptions& options = layers.options;
  comm::BucketedReduceOptions exchange{.recipients = comm::Recipients::owners,
                                       .dtype = options.dtype,
                                       .bucket_bytes = options.communication.bucket_bytes,
                                       .wire = options.communication.statistics_wire,
                                       .parts_below_sum = true,
                                       .wire_overflows = wire_overflows,
                                       .fill_context = &fill_context};
  a_.emplace(layers.ctx, layers.grid, "statistics A", std::move(a_slots), exchange);
  exchange.trailer = trailer;
  g_.emplace(layers.ctx, layers.grid, "statistics G", std::move(g_slots), exchange);
  exchange.trailer = 0;
  exchange.recipients = comm::Recipients::all;
  if (exchange.wire == DType::f16) exchange.wire.reset();  // Scales have no magnitudes.
  if (!scale_slots.empty())
    scales_.emplace(layers.ctx, layers.grid, "scales of EKFAC", std::move(scale_slots), exchange);
}

void StatisticSums::begin(std::vector<comm::BucketedReduce*>& active) {
  if (!layers_.schedule.any_due()) return;
  for (StatisticId id = 0; id < layers_.ids() && local_.empty(); ++id) {
    const Statistic& s = layers_.statistic(id);
    std::vector<bool>& due_slots = s.plan.kind == StatisticKind::a ? a_due_ : g_due_;
    due_slots[index_of(s.slot)] = layers_.due(id);
    reduction_of(s).set_magnitude(s.slot, layers_.schedule.entry(id).exponent);
  }
  a_->begin(a_due_);
  active.push_back(&*a_);
  if (scales_) {
    for (int i = 0; i < layers_.layers(); ++i)
      if (const ScaleRecords* scales = layers_.layer(i).scales())
        scales_due_[index_of(scales->slot)] = layers_.scales_due(i);
    scales_->begin(scales_due_);
    active.push_back(&*scales_);
  }
  g_->begin(g_due_);
  active.push_back(&*g_);
}

TensorView StatisticSums::of(StatisticId id) {
  if (!local_.empty()) return local_[index_of(id)];
  const Statistic& s = layers_.statistic(id);
  return reduction_of(s).slot(s.slot);
}

TensorView StatisticSums::of_scales(int layer) {
  return scales_->slot(layers_.layer(layer).scales()->slot);
}

void StatisticSums::mark_filled(StatisticId id, bool filled) {
  if (!local_.empty()) return;
  const Statistic& s = layers_.statistic(id);
  reduction_of(s).mark_filled(s.slot, filled);
}

void StatisticSums::mark_scales_filled(int layer, bool filled) {
  scales_->mark_filled(layers_.layer(layer).scales()->slot, filled);
}

std::int64_t StatisticSums::staging_bytes() const {
  std::size_t bytes = 0;
  for (const auto* reduce : {&a_, &g_, &scales_})
    if (*reduce) bytes += (*reduce)->staging_bytes();
  for (const Tensor& own : local_) bytes += own.bytes();
  return static_cast<std::int64_t>(bytes);
}

std::int64_t StatisticSums::wire_bytes() const {
  std::size_t bytes = 0;
  for (const auto* reduce : {&a_, &g_, &scales_})
    if (*reduce) bytes += (*reduce)->wire_bytes();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace dkfac::kfac
