#include "kfac/curvature/factor_delivery.h"

#include <type_traits>

#include "dkfac/core/ops.h"

#include "kfac/curvature/shared_part.h"

namespace dkfac::kfac {
namespace {

std::vector<DeliveredPart> all_traces(const LayerTable& layers) {
  std::vector<DeliveredPart> parts;
  for (StatisticId id = 0; id < layers.ids(); ++id) {
    const Statistic& s = layers.statistic(id);
    if (s.partner == kNoStatistic) continue;
    const Statistic& other = layers.statistic(s.partner);
    if (s.owner != other.owner)
      parts.push_back(
          {id, {s.owner, other.owner, damped_groups(s.plan.factor, other.plan.factor)}});
  }
  return parts;
}

std::vector<DeliveredPart> all_inverses(const LayerTable& layers) {
  std::vector<DeliveredPart> parts;
  for (StatisticId id = 0; id < layers.ids(); ++id) {
    const Statistic& s = layers.statistic(id);
    if (!s.plan.factor.is_set() || layers.holder(s) == s.owner) continue;
    parts.push_back(
        {id, {s.owner, layers.holder(s), head_numel(s.plan.factor) + sent_numel(s.plan.factor)}});
  }
  return parts;
}

std::vector<comm::Route> routes_of(const std::vector<DeliveredPart>& parts) {
  std::vector<comm::Route> routes;
  for (const DeliveredPart& part : parts) routes.push_back(part.route);
  return routes;
}

std::int64_t all_heads(const LayerTable& layers, const std::vector<DeliveredPart>& parts) {
  std::int64_t numbers = 0;
  for (const DeliveredPart& part : parts)
    numbers += head_numel(layers.statistic(part.id).plan.factor);
  return numbers;
}

}  // namespace

FactorDelivery::FactorDelivery(LayerTable& layers)
    : layers_(layers),
      traces_(all_traces(layers)),
      inverses_(all_inverses(layers)),
      trace_exchange_(layers.ctx, layers.comm, "traces", DType::f64, routes_of(traces_)),
      inverse_exchange_(layers.ctx, layers.comm, "inverses of factors", layers.options.dtype,
                        routes_of(inverses_)),
      heads_(layers.ctx, {all_heads(layers, inverses_)}, DType::f64) {}

std::size_t FactorDelivery::bytes() const {
  return trace_exchange_.bytes() + inverse_exchange_.bytes();
}

Factor& FactorDelivery::factor(const DeliveredPart& part) {
  const Statistic& s = layers_.statistic(part.id);
  return layers_.layer(s.layer).factor(s.plan.kind);
}

void FactorDelivery::choose(const std::vector<DeliveredPart>& from, bool all, bool partners) {
  parts_.clear();
  for (const DeliveredPart& part : from) {
    const StatisticId partner = layers_.statistic(part.id).partner;
    // What all ranks know: not Statistic::foreign.
    if (all || layers_.schedule.rebuild_due(part.id) ||
        (partners && layers_.schedule.rebuild_due(partner)))
      parts_.push_back(part);
  }
}

template <class Body>
void FactorDelivery::for_parts(int comm::Route::*side, Body&& body) {
  std::int64_t head = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const DeliveredPart& part = parts_[i];
    if (part.route.*side == layers_.comm->rank()) body(part, static_cast<int>(i), head);
    head += head_numel(layers_.statistic(part.id).plan.factor);
  }
}

void FactorDelivery::send_traces(bool all) {
  choose(traces_, all, true);
  if (parts_.empty()) return;
  trace_exchange_.begin(routes_of(parts_));
  for_parts(&comm::Route::from, [&](const DeliveredPart& part, int i, std::int64_t) {
    Factor& f = factor(part);
    const bool weighted =
        layers_.options.damping == 0 && layers_.statistic(part.id).plan.kind == StatisticKind::g;
    damping_traces(layers_.ctx, f, weighted, f.traces);
    ops::copy(layers_.ctx, f.traces, trace_exchange_.sent(i));
  });
  trace_exchange_.run();
  for_parts(&comm::Route::to, [&](const DeliveredPart& part, int i, std::int64_t) {
    ops::copy(layers_.ctx, trace_exchange_.received(i), factor(part).traces);
  });
}

void FactorDelivery::send_inverses(bool all) {
  choose(inverses_, all, false);
  if (parts_.empty()) return;
  Context& ctx = layers_.ctx;
  inverse_exchange_.begin(routes_of(parts_));
  double* const numbers = heads_.numbers<double>();
  for_parts(&comm::Route::from, [&](const DeliveredPart& part, int, std::int64_t head) {
    visit_head({.factor = &factor(part)},
               [&](auto& number) { numbers[head++] = static_cast<double>(number); });
  });
  heads_.push(ctx);
  for_parts(&comm::Route::from, [&](const DeliveredPart& part, int i, std::int64_t head) {
    Factor& f = factor(part);
    const std::int64_t count = head_numel(f);
    const TensorView piece = inverse_exchange_.sent(i);
    ops::cast(ctx, heads_.device().slice(0, head, count), piece.slice(0, 0, count));
    write_body(ctx, {.factor = &f}, piece.slice(0, count, piece.numel() - count));
  });
  inverse_exchange_.run();
  for_parts(&comm::Route::to, [&](const DeliveredPart& part, int i, std::int64_t head) {
    const std::int64_t count = head_numel(factor(part));
    ops::cast(ctx, inverse_exchange_.received(i).slice(0, 0, count),
              heads_.device().slice(0, head, count));
  });
  heads_.fetch(ctx);
  ctx.stream().synchronize();
  for_parts(&comm::Route::to, [&](const DeliveredPart& part, int i, std::int64_t head) {
    Factor& f = factor(part);
    visit_head({.factor = &f}, [&](auto& number) {
      number = static_cast<std::remove_reference_t<decltype(number)>>(numbers[head++]);
    });
    const std::int64_t count = head_numel(f);
    const TensorView piece = inverse_exchange_.received(i);
    read_body(ctx, piece.slice(0, count, piece.numel() - count), {.factor = &f});
  });
}

}  // namespace dkfac::kfac
