#include "optim/gradients.h"

#include <algorithm>
#include <utility>

#include "dkfac/core/ops.h"

#include "comm/collective/wire.h"
#include "core/shared/activity_timer.h"

namespace dkfac::optim {
namespace {

std::vector<comm::Slot> slots_of(const std::vector<ParameterLayer>& layers,
                                 std::span<const int> owners) {
  std::vector<comm::Slot> slots;
  const std::size_t count = layers.size();
  for (std::size_t i = count; i-- > 0;)
    slots.push_back({owners[i], layers[i].numel(), static_cast<int>(2 * count - 1 - i)});
  return slots;
}

}  // namespace

Gradients::Gradients(OptimizerFrame& frame, const GradientOptions& options,
                     std::span<const int> owners)
    : frame_(frame),
      reduction_(options.loss_reduction),
      nonfinite_(Tensor::zeros(frame.ctx, {1})),
      exchange_(frame.ctx, frame.grid, "gradients", slots_of(frame.layers, owners),
                {.recipients = options.recipients,
                 .dtype = frame.dtype(),
                 .bucket_bytes = options.bucket_bytes,
                 .trailer = comm::kFlagElements,
                 .wire = options.wire,
                 .wire_overflows = nonfinite_}) {
  if (frame.ctx.device().is_cuda() && !frame.layers.empty()) {
    std::vector<TensorView> packed;
    for (int layer = 0; layer < exchange_.slots(); ++layer) packed.push_back(of(layer));
    table_ = make_pack_table(frame.ctx, frame.layers, packed);
  }
  if (options.wire == DType::f16)
    magnitudes_.emplace(frame.ctx, Shape{std::ssize(frame.layers)}, DType::f32);
}

void Gradients::begin(std::vector<comm::BucketedReduce*>& active) {
  exchange_.begin();
  active.push_back(&exchange_);
  ops::fill(frame_.ctx, nonfinite_, 0);
}

int Gradients::unannounced(LayerId id) const {
  const int layer = frame_.checked(id, "grads_ready");
  DKFAC_CHECK(!exchange_.filled(slot_of(layer)), "[grads_ready] layer '",
              frame_.layers[static_cast<std::size_t>(layer)].name,
              "' was announced twice in one step");
  return layer;
}

void Gradients::announce(LayerId id, Stream caller, RecordScale scale) {
  const int layer = unannounced(id);
  const ParameterLayer& parameters = frame_.layers[static_cast<std::size_t>(layer)];
  const ActivityTimer timer(packing_seconds_, "exchange");
  frame_.join.enter("grads_ready", caller, frame_.ctx.stream());
  const double factor = gradient_scale(reduction_, scale, frame_.comm->size());
  pack_gradients(frame_.ctx, parameters, factor, of(layer), nonfinite_);
  frame_.join.leave(caller, frame_.ctx.stream());
  exchange_.mark_filled(slot_of(layer));
}

void Gradients::announce(std::span<const LayerId> ids, Stream caller, RecordScale scale) {
  if (!frame_.ctx.device().is_cuda()) {
    for (const LayerId id : ids) announce(id, caller, scale);
    return;
  }
  if (ids.empty()) return;
  layers_.clear();
  for (const LayerId id : ids) layers_.push_back(unannounced(id));
  std::sort(layers_.begin(), layers_.end());
  if (const auto twice = std::adjacent_find(layers_.begin(), layers_.end()); twice != layers_.end())
    throw InvalidArgument(detail::concat("[grads_ready] layer '",
                                         frame_.layers[static_cast<std::size_t>(*twice)].name,
                                         "' was announced twice in one step"));
  const ActivityTimer timer(packing_seconds_, "exchange");
  const double factor = gradient_scale(reduction_, scale, frame_.comm->size());
  frame_.join.enter("grads_ready", caller, frame_.ctx.stream());
  for (std::size_t first = 0, end = 0; first < layers_.size(); first = end) {
    end = first + 1;
    while (end < layers_.size() && layers_[end] == layers_[end - 1] + 1) ++end;
    pack_gradients(frame_.ctx, table_, layers_[first], layers_[end - 1], factor, nonfinite_);
  }
  frame_.join.leave(caller, frame_.ctx.stream());
  for (const int layer : layers_) exchange_.mark_filled(slot_of(layer));
}

void Gradients::complete(bool allow_missing) {
  for (int layer = exchange_.slots() - 1; layer >= 0; --layer) {
    if (exchange_.filled(slot_of(layer))) continue;
    DKFAC_CHECK(allow_missing, "[step] the gradients of layer '",
                frame_.layers[static_cast<std::size_t>(layer)].name,
                "' were not announced; call grads_ready() for every layer");
    ops::fill(frame_.ctx, of(layer), 0);
    exchange_.mark_filled(slot_of(layer));
  }
}

void Gradients::request() {
  if (!magnitudes_) return;
  ops::copy(frame_.ctx, exchange_.largest(), magnitudes_->device());
  frame_.comm->all_reduce(magnitudes_->device(), comm::ReduceOp::max, frame_.ctx.stream(),
                          "magnitudes");
  magnitudes_->fetch(frame_.ctx);
}

void Gradients::collect(UpdateReport& report) {
  set_magnitudes();
  report.seconds.exchange += std::exchange(packing_seconds_, 0);
}

void Gradients::set_magnitudes() {
  if (!magnitudes_) return;
  const float* largest = magnitudes_->numbers<float>();
  for (int i = 0; i < exchange_.slots(); ++i)
    exchange_.set_magnitude(i, comm::exponent_of(static_cast<double>(largest[i])));
}

std::vector<kfac::NamedBytes> Gradients::buffers() const {
  return {{"staging of gradients", static_cast<std::int64_t>(exchange_.staging_bytes())},
          {"wire of gradients", static_cast<std::int64_t>(exchange_.wire_bytes())}};
}

void Gradients::visit_state(StateVisitor& visitor) {
  if (magnitudes_)
    visitor.tensor("gradient_magnitudes", StateKind::replicated, magnitudes_->host());
  set_magnitudes();
  packing_seconds_ = 0;
}

}  // namespace dkfac::optim
