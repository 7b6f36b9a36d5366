#include "app/plan/reductions.h"

#include <algorithm>

#include "comm/collective/bucketed_reduce.h"
#include "comm/collective/flag_message.h"
#include "core/shared/index.h"

namespace dkfac::app::planning {

namespace {

double size_in(std::optional<DType> wire, DType dtype) {
  return static_cast<double>(size_of(wire.value_or(dtype)));
}

/// Adds the buckets of some blocks.
void add(const std::vector<comm::Slot>& blocks, bool statistics, int segments, std::int64_t trailer,
         const CommunicationOptions& o, DType dtype, std::vector<Reduction>& out) {
  const std::optional<DType> wire = statistics ? o.statistics_wire : o.gradient_wire;
  const double element = size_in(wire, dtype);
  comm::BucketPlan plan;
  comm::plan_buckets(
      blocks, {},
      {.segments = segments,
       .bucket_elements = std::max<std::int64_t>(
           1, o.bucket_bytes / static_cast<std::int64_t>(size_of(wire.value_or(dtype)))),
       .trailer = trailer,
       .separate_trailer = wire.value_or(dtype) != dtype},
      plan);
  for (int b = 0; b < std::ssize(plan.buckets); ++b) {
    const auto counts = plan.counts_of(b);
    const comm::Bucket& bucket = plan.buckets[index_of(b)];
    out.push_back({.statistics = statistics,
                   .time = bucket.time,
                   .bytes = element * static_cast<double>(bucket.numel),
                   .largest = element * static_cast<double>(*std::ranges::max_element(counts))});
  }
}

/// The blocks of A in forward order, or of everything else in backward order.
struct Blocks {
  std::vector<comm::Slot> a, g, gradients;
};
Blocks blocks_of(const Network& network, const Ownership& o) {
  Blocks blocks;
  const int layers = static_cast<int>(network.specs.size());
  for (int i = 0; i < layers; ++i)
    if (const std::int64_t n = o.work[index_of(i)].a.statistic; n > 0)
      blocks.a.push_back({o.owners[index_of(i)].a, n, i});
  for (int i = layers - 1; i >= 0; --i) {
    const int time = 2 * layers - 1 - i;
    const LayerSpec& spec = network.specs[index_of(i)];
    if (const std::int64_t n = o.work[index_of(i)].g.statistic; n > 0)
      blocks.g.push_back({o.owners[index_of(i)].g, n, time});
    blocks.gradients.push_back({o.owned ? o.owners[index_of(i)].layer % o.columns : 0,
                                weight_numel(spec) + bias_numel(spec), time});
  }
  return blocks;
}

}  // namespace

std::vector<Reduction> reductions(const Network& network, const Ownership& o, int ranks,
                                  bool statistics) {
  const CommunicationOptions& communication = o.options.communication;
  const Blocks blocks = blocks_of(network, o);
  std::vector<Reduction> all;
  if (statistics && !o.has_local_statistics(ranks)) {
    add(blocks.a, true, ranks, 0, communication, o.options.dtype, all);
    add(blocks.g, true, ranks, 0, communication, o.options.dtype, all);
  }
  add(blocks.gradients, false, o.columns, comm::kFlagElements, communication, o.options.dtype, all);
  std::ranges::stable_sort(all, {}, &Reduction::time);
  return all;
}

Gathers gathers(const Network& network, const Ownership& o, int ranks) {
  Gathers out;
  if (!o.owned || ranks == 1) return out;
  const double element = static_cast<double>(size_of(o.options.dtype));
  const double weight = size_in(o.options.communication.weight_wire, o.options.dtype);
  std::vector<double> own(index_of(o.columns)), inverses(own), sent(index_of(ranks)), got(sent);
  for (std::size_t i = 0; i < network.specs.size(); ++i) {
    const LayerSpec& spec = network.specs[i];
    const kfac::LayerOwners& at = o.owners[i];
    own[index_of(at.layer % o.columns)] +=
        weight * static_cast<double>(weight_numel(spec) + bias_numel(spec));
    const double a = element * static_cast<double>(o.work[i].a.sent),
                 g = element * static_cast<double>(o.work[i].g.sent);
    inverses[index_of(at.layer % o.columns)] += a + g;
    out.largest_inverses = std::max(out.largest_inverses, a + g);
    for (const auto& [from, bytes] : {std::pair{at.a, a}, std::pair{at.g, g}}) {
      if (from % o.columns == at.layer % o.columns) continue;
      sent[index_of(from)] += bytes;
      got[index_of(at.layer)] += bytes;
    }
  }
  for (int r = 0; r < ranks; ++r)
    out.message = std::max({out.message, sent[index_of(r)], got[index_of(r)]});
  if (o.workers > 1) out.inverses = *std::ranges::max_element(inverses);
  if (o.columns > 1) {
    out.weights = weight * network.parameters();
    out.largest_weights = *std::ranges::max_element(own);
  }
  return out;
}

}  // namespace dkfac::app::planning
