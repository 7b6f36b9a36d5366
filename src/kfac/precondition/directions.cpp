#include "kfac/precondition/directions.h"

#include <algorithm>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "core/shared/activity_timer.h"
#include "core/shared/index.h"

namespace dkfac::kfac {

namespace {

/// Bound of the elements of a batch. Products of more than that have 500 tiles of 128x128, which
/// occupy a device; a batch would only need more scratch memory.
constexpr std::int64_t kBatchElements = std::int64_t{1} << 23;

}  // namespace

Directions::Directions(Context& ctx, const Curvature& curvature)
    : ctx_(ctx), kl_clip_(curvature.options().kl_clip) {
  form_batches(curvature);
  if (const StepLength rule = curvature.options().length_rule(); rule != StepLength::none)
    lengths_.emplace(ctx, rule, curvature);
  if (!(kl_clip_ > 0)) return;
  clip_.emplace(ctx, 2 * std::int64_t{curvature.layers()});
  factor_ = comm::HostDevicePair(ctx, {1}, DType::f64);
  *factor_.numbers<double>() = 1;
}

void Directions::form_batches(const Curvature& curvature) {
  struct Open {
    BatchShape shape;
    int batch = 0;
    std::int64_t room = 0;
  };
  std::vector<Open> open;
  int count = 0;
  for (int i = 0; i < curvature.layers(); ++i) {
    const auto shape = batch_shape(curvature.layer(i).spec, curvature.options(), ctx_.device());
    const std::int64_t size = shape ? shape->out * shape->d : 0;
    const auto found = std::ranges::find_if(
        open, [&](const Open& o) { return shape && o.shape == *shape && o.room >= size; });
    if (curvature.is_worker_of(i) && found != open.end()) {
      found->room -= size;
      batch_of_.push_back(found->batch);
      continue;
    }
    if (curvature.is_worker_of(i) && shape) open.push_back({*shape, count, kBatchElements - size});
    batch_of_.push_back(count++);
  }
  batches_.resize(index_of(count));
}

ConstTensorView Directions::make(Curvature& curvature, const comm::WorkerGrid& grid,
                                 std::span<const LayerDirection> layers, double lr,
                                 StepReport& report) {
  const ActivityTimer timer(report.seconds.update);
  const std::int64_t before = std::exchange(last_update_, report.step);
  report.update_step = ctx_.device().is_cuda() ? before : report.step;
  for (Batch& batch : batches_) batch.layers.clear();
  for (const LayerDirection& layer : layers)
    batches_[index_of(batch_of_[index_of(layer.layer)])].layers.push_back(layer);
  if (clip_) set_rates(curvature);
  launch(curvature, layers, report);
  if (!clip_) return {};
  const ConstTensorView factor = clip_->factor(grid, kl_clip_, lr);
  ops::copy(ctx_, factor, factor_.device());
  report.kl_factor = *factor_.numbers<double>();
  factor_.fetch(ctx_);
  return factor;
}

template <class F>
void Directions::for_clipped(const Curvature& curvature, const Batch& batch, F&& f) const {
  if (!clip_) return;
  for (const LayerDirection& d : batch.layers) {
    if (!curvature.owns(d.layer)) continue;
    if (!d.whole.empty() && d.weight_lr == d.bias_lr) {
      f(d.whole, d.weight_lr);
    } else {
      f(d.weight, d.weight_lr);
      f(d.bias, d.bias_lr);
    }
  }
}

void Directions::set_rates(const Curvature& curvature) {
  rates_.clear();
  for (const Batch& batch : batches_)
    for_clipped(curvature, batch, [&](TensorView x, double lr) {
      if (x.numel() > 0) rates_.push_back(lr);
    });
  clip_->set_rates(rates_);
}

void Directions::set_key(const Curvature& curvature, std::span<const LayerDirection> layers) {
  key_.layers.clear();
  for (const LayerDirection& d : layers) {
    const CurvatureBlock& block = curvature.layer(d.layer);
    key_.layers.push_back({d.layer, d.weight.raw(), d.bias.raw(), d.whole.raw(),
                           (d.weight.numel() > 0 ? d.weight : d.bias).dtype(), block.has_inverse(),
                           block.has_scales()});
  }
  key_.damping = curvature.options().damping;
  key_.relative = curvature.options().relative_damping;
  key_.normalization = curvature.options().norm_damping;
  { const Scratch scratch(ctx_); }  // Merges blocks now, which moves them.
  key_.growths = ctx_.scratch_growths();
}

void Directions::launch(Curvature& curvature, std::span<const LayerDirection> layers,
                        StepReport& report) {
  if (!ctx_.device().is_cuda() || !ctx_.graphs()) return precondition(curvature);
  constexpr int kAttempts = 3;
  set_key(curvature, layers);
  std::swap(key_, last_key_);
  if (key_ != last_key_) {
    // Work for another key writes the addresses of batches, which a replay would read.
    captured_ = {};
    refusals_ = 0;
  } else if (!captured_.fits(ctx_) && refusals_ < kAttempts) {
    record(curvature);
  }
  if (captured_.fits(ctx_)) {
    const ActivityTimer timer(report.seconds.precondition);
    captured_.replay(ctx_);
    ++launches_.replayed;
  } else {
    precondition(curvature);
    last_key_.growths = ctx_.scratch_growths();
    ++launches_.eager;
  }
}

void Directions::record(Curvature& curvature) {
  // Copies of addresses that were captured never run if the capture fails.
  const auto forget = [&] {
    for (Batch& batch : batches_) batch.products.forget_addresses();
  };
  try {
    captured_ = CapturedWork::capture(ctx_, [&] { precondition(curvature); });
    ++launches_.captured;
  } catch (const DeviceError& error) {
    // Errors of the device itself recur in the work that follows call by call.
    forget();
    ++launches_.refused;
    ++refusals_;
    launches_.reason = error.what();
  } catch (...) {
    forget();
    throw;
  }
}

void Directions::precondition(Curvature& curvature) {
  if (clip_) clip_->begin();
  for (Batch& batch : batches_)
    if (!batch.layers.empty()) precondition(curvature, batch);
  if (clip_) clip_->add_up();
}

void Directions::precondition(Curvature& curvature, Batch& batch) {
  Scratch scratch(ctx_);
  batch.gradients.clear();
  for_clipped(curvature, batch, [&](TensorView x, double) {
    TensorView copy;
    if (x.numel() > 0) {
      copy = scratch.take({x.numel()}, x.dtype());
      ops::copy(ctx_, x, copy);
    }
    batch.gradients.push_back(copy);
  });
  if (lengths_) lengths_->keep(scratch, batch.layers);
  curvature.precondition(batch.layers, batch.products);
  if (lengths_) lengths_->rescale(batch.layers);
  auto before = batch.gradients.begin();
  for_clipped(curvature, batch, [&](TensorView x, double) { clip_->add(*before++, x); });
}

}  // namespace dkfac::kfac
