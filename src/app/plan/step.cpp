#include "app/plan/step.h"

#include <algorithm>

#include "core/shared/index.h"

namespace dkfac::app::planning {

namespace {

class Builder {
 public:
  explicit Builder(const Step& step)
      : s_(step),
        passes_(pass_seconds(step.network, step.cluster.processor)),
        pending_(
            reductions(step.network, step.ownership, step.cluster.ranks, step.statistics > 0)) {
    if (step.ownership.has_local_statistics(step.cluster.ranks)) rank_ = busiest();
  }

  StepTasks build() {
    // All but the last micro-batch only accumulate gradients; statistics are of all.
    for (int k = 1; k < s_.micro_batches; ++k) pass(false);
    pass(true);
    launch_until(2 * static_cast<int>(s_.network.specs.size()));
    finish();
    return std::move(out_);
  }

 private:
  void compute(Phase phase, double seconds, int after = -1) {
    const Processor& p = s_.cluster.processor;
    seconds *= phase == Phase::update && s_.kfac
                   ? p.kfac_update
                   : p.corrections.at(static_cast<std::size_t>(phase));
    if (seconds > 0 || after >= 0) out_.tasks.push_back({Lane::compute, phase, seconds, after});
  }
  /// Seconds of a copy into a buffer of the links, or out of it.
  [[nodiscard]] double copied(double elements) const {
    return 2 * static_cast<double>(size_of(s_.ownership.options.dtype)) * elements /
           s_.cluster.processor.copy;
  }
  [[nodiscard]] int last() const { return static_cast<int>(out_.tasks.size()) - 1; }
  void send(Phase phase, const Transfer& transfer) {
    const double time = planning::seconds(transfer, s_.cluster);
    if (time <= 0) return;
    out_.sent += transfer;
    out_.links += time;
    // The task that has filled the bucket is the last one to compute.
    int filled = last();
    while (filled >= 0 && out_.tasks[index_of(filled)].lane != Lane::compute) --filled;
    out_.tasks.push_back({Lane::links, phase, time, filled});
  }

  /// What computes goes on behind the transfer.
  void wait_for(Phase phase, const Transfer& transfer) {
    send(phase, transfer);
    if (last() >= 0 && out_.tasks.back().lane == Lane::links) compute(phase, 0, last());
  }

  void pass(bool last_pass) {
    const auto& layers = s_.network.layers;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].spec >= 0) compute(Phase::statistics, statistic(layers[i], true));
      if (last_pass && layers[i].spec >= 0 && overlaps()) launch_until(layers[i].spec);
      compute(Phase::forward, passes_[i].forward);
    }
    for (std::size_t i = layers.size(); i-- > 0;) {
      if (layers[i].spec >= 0) compute(Phase::statistics, statistic(layers[i], false));
      compute(Phase::backward, passes_[i].parameters);
      if (last_pass && layers[i].spec >= 0)
        compute(Phase::reduce, copied(s_.network.parameters(layers[i].spec)));
      if (last_pass && layers[i].spec >= 0 && overlaps())
        launch_until(2 * static_cast<int>(s_.network.specs.size()) - 1 - layers[i].spec);
      compute(Phase::backward, passes_[i].input);
    }
  }

  [[nodiscard]] bool overlaps() const {
    return s_.cluster.processor.overlaps && s_.ownership.options.communication.overlap;
  }

  [[nodiscard]] int averager(const PassLayer& layer, bool of_a) const {
    const kfac::LayerOwners& owners = s_.ownership.owners[index_of(layer.spec)];
    return of_a ? owners.a : owners.g;
  }

  /// The rank whose own statistics take longest.
  [[nodiscard]] int busiest() const {
    std::vector<double> seconds(index_of(s_.cluster.ranks));
    for (const PassLayer& layer : s_.network.layers)
      for (const bool of_a : {true, false})
        if (layer.spec >= 0) seconds[index_of(averager(layer, of_a))] += statistic(layer, of_a);
    return static_cast<int>(std::ranges::max_element(seconds) - seconds.begin());
  }

  /// Seconds of the statistic A, or G, of a layer: operations of its product; the ranges of its
  /// operands, and patches of images, are read and written once more.
  [[nodiscard]] double statistic(const PassLayer& layer, bool of_a) const {
    if (s_.statistics <= 0 || (rank_ >= 0 && averager(layer, of_a) != rank_)) return 0;
    const kfac::CurvatureWork& both = s_.ownership.work[index_of(layer.spec)];
    const kfac::FactorWork& work = of_a ? both.a : both.g;
    if (work.statistic == 0) return 0;
    const Processor& p = s_.cluster.processor;
    const bool narrow = size_of(s_.network.compute) < 4;
    const double rate = (narrow ? p.products16 * p.share(p.forward, static_cast<double>(work.width))
                                : p.products32);
    const double moved = (of_a ? 3 * layer.in : 2 * layer.out) *
                         static_cast<double>(s_.network.batch) *
                         static_cast<double>(size_of(s_.network.compute));
    const bool product = layer.kind == PassKind::product;
    return s_.statistics *
           ((product ? work.build / rate : 0) + moved / p.copy + (product ? 5 : 2) * p.gap);
  }

  void launch_until(int time) {
    for (; next_ < pending_.size() && pending_[next_].time <= time; ++next_) {
      const Reduction& r = pending_[next_];
      const double part = r.statistics ? s_.statistics : 1;
      send(Phase::reduce,
           r.statistics ? to_owners(part * r.bytes, part * r.largest, s_.cluster) : gradients(r));
    }
  }

  [[nodiscard]] Transfer gradients(const Reduction& r) const {
    const Ownership& o = s_.ownership;
    if (!o.owned) return all_reduce(r.bytes, s_.cluster);
    Transfer t = to_owners(r.bytes, r.largest, row_of(s_.cluster, o.workers));
    t += all_reduce(r.bytes / o.columns, column_of(s_.cluster, o.workers));
    return t;
  }

  /// What follows the sums.
  void finish() {
    const Ownership& o = s_.ownership;
    const Processor& p = s_.cluster.processor;
    const double element = static_cast<double>(size_of(o.options.dtype));
    const bool sent = last() >= 0 && out_.tasks.back().lane == Lane::links;
    double averaged = 0;  // Read, read and written, by the owner of an even share.
    for (const kfac::CurvatureWork& work : o.work)
      averaged += 3 * element * static_cast<double>(work.a.statistic + work.g.statistic);
    compute(Phase::statistics, s_.statistics * averaged / s_.cluster.ranks / p.copy,
            sent ? last() : -1);
    compute(Phase::inverses, s_.rebuild.seconds);
    wait_for(Phase::inverses, s_.rebuild.exchange);
    const Gathers g = gathers(s_.network, o, s_.cluster.ranks);
    if (s_.rebuilt > 0) {
      Transfer shared = to_owners(s_.rebuilt * g.inverses, s_.rebuilt * g.largest_inverses,
                                  column_of(s_.cluster, o.workers));
      shared += message(s_.rebuilt * g.message, s_.cluster);
      wait_for(Phase::gather, shared);
    }
    compute(Phase::precondition, direction_seconds(o, p));
    // Gradient read, weights and states read and written.
    const double passes = 3 + 2 * s_.states;
    compute(Phase::update,
            passes * element * updated_elements(s_.network, o, s_.cluster.ranks) / p.copy + p.gap);
    if (s_.cluster.ranks == 1 || g.weights <= 0) return;
    send(Phase::gather, to_owners(g.weights, g.largest_weights, row_of(s_.cluster, o.workers)));
    compute(Phase::gather, copied(s_.network.parameters()), last());
  }

  const Step& s_;
  int rank_ = -1;  ///< The one whose statistics count; -1: each rank computes all.
  std::vector<LayerSeconds> passes_;
  std::vector<Reduction> pending_;
  std::size_t next_ = 0;
  StepTasks out_;
};

}  // namespace

StepTasks tasks_of(const Step& step) { return Builder(step).build(); }

}  // namespace dkfac::app::planning
