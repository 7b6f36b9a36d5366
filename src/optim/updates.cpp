#include "optim/updates.h"

#include <cmath>
#include <utility>

#include "dkfac/core/error.h"

#include "optim/backend_updates.h"

namespace dkfac::optim {
namespace {

void check_alike(const Context& ctx, DType dtype, const UpdatedPart& part) {
  const auto check = [&](ConstTensorView x, DType type) {
    DKFAC_CHECK(x.numel() == part.numel() && x.dtype() == type && x.device() == ctx.device() &&
                    x.is_contiguous(),
                "[update] a tensor has ", x.numel(), ' ', x.dtype(), " elements on ", x.device(),
                "; it must be contiguous and have ", part.numel(), ' ', type, " elements on ",
                ctx.device());
  };
  check(part.gradient, dtype);
  const TensorView& states = part.states;
  DKFAC_CHECK(states.ndim() == 2 && states.dim(1) == part.numel() && states.stride(1) == 1 &&
                  states.dtype() == dtype && states.device() == ctx.device(),
              "[update] the state is ", states.dtype(), ' ', states.shape(), " on ",
              states.device(), "; it must be ", dtype, " [states,", part.numel(), "] on ",
              ctx.device());
  check(part.parameter, dtype);
  if (!part.master.empty()) check(part.master, dtype);
  if (!part.block.empty()) check(part.block, part.master.empty() ? dtype : part.block.dtype());
}

}  // namespace

double lars_trust_ratio(const LarsOptions& options, double weight_norm, double gradient_norm,
                        double lr) {
  options.validate();
  DKFAC_CHECK(lr >= 0 && std::isfinite(lr), "[lars_trust_ratio] lr is ", lr,
              "; it must be finite and >= 0");
  return trust_ratio(options, weight_norm, gradient_norm, lr);
}

double weight_rescaling(Rescale rule, std::int64_t d_out, double weight_norm) {
  DKFAC_CHECK(d_out > 0, "[weight_rescaling] d_out is ", d_out, "; a weight has rows");
  return rescale_factor(rule, d_out, weight_norm);
}

UpdateTable make_update_table(Context& ctx, DType dtype, std::vector<UpdatedPart> parts) {
  DKFAC_CHECK(dtype == DType::f32 || dtype == DType::f64, "[update] parameters are ", dtype,
              "; they must be f32 or f64");
  UpdateTable table;
  table.dtype = dtype;
  for (UpdatedPart& part : parts) {
    if (part.numel() == 0) continue;
    check_alike(ctx, dtype, part);
    table.parts.push_back(std::move(part));
  }
  if (ctx.device().is_cuda() && !table.parts.empty()) cuda::upload(ctx, table);
  return table;
}

#define DKFAC_DEFINE(kernel, Pass)                                  \
  void update(Context& ctx, UpdateTable& table, const Pass& pass) { \
    if (!table.parts.empty()) kernels::kernel(ctx, table, pass);    \
  }
DKFAC_ELEMENTWISE_PASSES(DKFAC_DEFINE)
#undef DKFAC_DEFINE

void lars_update(Context& ctx, UpdateTable& table, const LarsOptions& options, double lr) {
  if (!table.parts.empty()) kernels::lars_update(ctx, table, options, lr);
}

void kfac_update(Context& ctx, UpdateTable& table, const KfacUpdate& update) {
  if (!table.parts.empty()) kernels::kfac_update(ctx, table, update);
}

}  // namespace dkfac::optim
