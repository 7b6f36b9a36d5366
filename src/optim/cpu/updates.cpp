#include <variant>

#include "dkfac/core/half.h"
#include "dkfac/core/ops.h"

#include "optim/backend_updates.h"
#include "optim/cpu/first_order.h"

namespace dkfac::optim::cpu {
namespace {

/// Number of elements of x that become infinite in the wire type.
std::int64_t wire_overflows(Context& ctx, DType wire, ConstTensorView x) {
  double largest = 0;
  ops::max_abs(ctx, x, view_of(&largest, {1}));
  if (largest <= static_cast<double>(kMaxF16)) return 0;  // f16 has the smallest range.
  Scratch scratch(ctx);
  const TensorView narrow = scratch.take(x.shape(), wire);
  const TensorView back = scratch.take(x.shape(), x.dtype());
  float count = 0;
  ops::cast(ctx, x, narrow);
  ops::cast(ctx, narrow, back);
  ops::count_nonfinite(ctx, back, view_of(&count, {1}));
  return static_cast<std::int64_t>(count);
}

/// Rounds a master to `parameter`, used in computation, and to `block`, from which it is gathered.
void publish(Context& ctx, DType wire, const UpdatedPart& part) {
  float underflow = 0;  // Not used.
  ops::round_to(ctx, wire, 1, part.master, part.parameter, view_of(&underflow, {1}));
  if (!part.block.empty()) ops::cast(ctx, part.parameter, part.block);
}

}  // namespace

#define DKFAC_DEFINE(kernel, Pass)                                                    \
  void kernel(Context&, UpdateTable& table, const Pass& pass) {                       \
    for (const UpdatedPart& part : table.parts)                                       \
      elementwise_pass(scaled(pass, part.lr, part.decay), part.gradient, part.states, \
                       part.parameter);                                               \
  }
DKFAC_ELEMENTWISE_PASSES(DKFAC_DEFINE)
#undef DKFAC_DEFINE

void lars_update(Context&, UpdateTable& table, const LarsOptions& options, double lr) {
  for (const UpdatedPart& part : table.parts) {
    LarsPass pass{.momentum = options.momentum,
                  .weight_decay = options.weight_decay * part.decay,
                  .nesterov = options.nesterov};
    const double rate = lr * part.lr;
    const double trust =
        part.is_weight
            ? trust_ratio(
                  options, l2_norm(part.parameter),
                  trust_norm(options.form, pass.weight_decay, part.gradient, part.parameter), rate)
            : 1;
    set_rate(pass, options.form, rate, trust);
    lars_pass(pass, part.gradient, part.state(0), part.parameter);
  }
}

void kfac_update(Context& ctx, UpdateTable& table, const KfacUpdate& update) {
  const double clip = update.clip.empty() ? 1 : *update.clip.data<double>();
  std::int64_t saturated = 0;
  for (const UpdatedPart& part : table.parts) {
    const auto own = std::visit(
        [&](const auto& pass) -> DirectionPass { return scaled(pass, part.lr, part.decay); },
        update.pass);
    const double factor = part.preconditioned ? clip : 1;
    direction_pass(own, factor, part.gradient, part.from(), part.states, part.out());
    if (part.d_out > 0) rescale(update.rescale, part.d_out, part.out());
    if (keeps_weight(own)) finish_paper_momentum(part.out(), part.state(0));
    if (part.master.empty()) continue;
    saturated += wire_overflows(ctx, *update.wire, part.master);
    publish(ctx, *update.wire, part);
  }
  if (!update.saturated.empty()) *update.saturated.data<double>() = static_cast<double>(saturated);
}

}  // namespace dkfac::optim::cpu
