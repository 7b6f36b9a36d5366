#include <functional>
#include <string_view>

#include "dkfac/core/ops.h"

#include "app/bench/bench.h"
#include "app/training/state.h"

namespace dkfac::app::bench {

namespace {

double hash_of(ConstTensorView x) {
  const std::string_view bytes(static_cast<const char*>(x.raw()), x.bytes());
  // 53 bits, which a double holds exactly.
  return static_cast<double>(std::hash<std::string_view>{}(bytes) >> 11);
}

}  // namespace

std::string wrong_parameters(TrainState& s) {
  Context host;
  const ConstTensorView parameters = s.model->parameters();
  Tensor copy = Tensor::pinned(s.ctx, parameters.shape(), parameters.dtype());
  ops::copy(s.ctx, parameters, copy);
  s.ctx.stream().synchronize();
  float bad = 0;
  ops::count_nonfinite(host, copy, view_of(&bad, {1}));
  if (bad > 0) return s.config.run.name + ": parameters are not finite";
  const double hash = hash_of(copy);
  double extremes[] = {-hash, hash};  // max(-x) = -min(x)
  s.comm->all_reduce(view_of(extremes, {2}), comm::ReduceOp::max, Stream::cpu(), "hash");
  return -extremes[0] == extremes[1] ? "" : s.config.run.name + ": ranks have different parameters";
}

}  // namespace dkfac::app::bench
