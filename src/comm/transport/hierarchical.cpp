#include "dkfac/comm/hierarchical.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "dkfac/core/error.h"

#include "comm/transport/host_communicator.h"
#include "comm/transport/leaked.h"
#include "comm/transport/node_map.h"
#include "core/shared/host_queue.h"

namespace dkfac::comm {
namespace {

using Memory = std::shared_ptr<std::vector<std::byte>>;

/// Two orders of the segments of a whole buffer: by rank, as callers see it, and by place, then
/// node, in which the segments of a place are contiguous.
struct Reordering {
  std::vector<std::size_t> in_rank_order, in_place_order, bytes;

  Reordering(const NodeMap& map, std::span<const std::int64_t> counts, std::size_t element) {
    std::vector<std::size_t> offsets{0};
    for (const std::int64_t count : counts)
      offsets.push_back(offsets.back() + static_cast<std::size_t>(count) * element);
    std::size_t offset = 0;
    for (const int r : map.rank_at) {
      const auto i = static_cast<std::size_t>(r);
      in_rank_order.push_back(offsets[i]);
      in_place_order.push_back(offset);
      bytes.push_back(offsets[i + 1] - offsets[i]);
      offset += bytes.back();
    }
  }
};

/// Copies segments between the two orders. Keeps the owner of scratch memory alive.
class ReorderTask final : public HostTask {
 public:
  enum class Direction { to_places, to_ranks };
  ReorderTask(Direction way, Reordering order, const void* from, void* to, Memory kept)
      : way_(way),
        order_(std::move(order)),
        from_(static_cast<const std::byte*>(from)),
        to_(static_cast<std::byte*>(to)),
        kept_(std::move(kept)) {}
  bool advance() override {
    const auto& read = way_ == Direction::to_places ? order_.in_rank_order : order_.in_place_order;
    const auto& write = way_ == Direction::to_places ? order_.in_place_order : order_.in_rank_order;
    for (std::size_t i = 0; i < read.size(); ++i)
      if (order_.bytes[i] > 0) std::memcpy(to_ + write[i], from_ + read[i], order_.bytes[i]);
    return true;
  }

 private:
  Direction way_;
  Reordering order_;
  const std::byte* from_;
  std::byte* to_;
  Memory kept_;
};

std::int64_t sum_before(const std::vector<std::int64_t>& counts, int end) {
  return std::accumulate(counts.begin(), counts.begin() + end, std::int64_t{0});
}

/// Returns the reason of the queue's failure, or "" if it has not failed.
std::string failure_of(HostQueue& queue) noexcept {
  try {
    (void)queue.progress();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Task after the parts of a collective in their queue. The failure of a part reaches its own level
/// only. This task is then dropped with the rest of the queue and aborts all ranks.
class GuardTask final : public HostTask {
 public:
  GuardTask(HostQueue& queue, std::shared_ptr<Communicator> world, std::string call, Memory kept)
      : queue_(queue.weak_from_this()),
        world_(std::move(world)),
        call_(std::move(call)),
        kept_(std::move(kept)) {}
  ~GuardTask() override {
    if (complete_) return;
    if (kept_ != nullptr) leak_until_exit(kept_);
    // By an exception: the queue only knows that its stream was destroyed, which is not the cause.
    const bool by_exception = std::uncaught_exceptions() > 0;
    const std::shared_ptr<HostQueue> queue = by_exception ? nullptr : queue_.lock();
    const std::string reason = queue == nullptr ? std::string() : failure_of(*queue);
    const char* where =
        by_exception ? "; an exception was on its way there: look for its message" : "";
    world_->abort(reason.empty()
                      ? detail::concat("dropped ", call_, " before it was complete", where)
                      : reason);
  }
  GuardTask(const GuardTask&) = delete;
  GuardTask& operator=(const GuardTask&) = delete;
  bool advance() override { return complete_ = true; }

 private:
  std::weak_ptr<HostQueue> queue_;
  std::shared_ptr<Communicator> world_;
  std::string call_;
  Memory kept_;
  bool complete_ = false;
};

class HierarchicalCommunicator final : public Communicator {
 public:
  HierarchicalCommunicator(std::shared_ptr<Communicator> world, NodeMap map,
                           std::shared_ptr<Communicator> inner, std::shared_ptr<Communicator> outer)
      : Communicator(world->rank(), world->size(), world->options()),
        world_(std::move(world)),
        inner_(std::move(inner)),
        outer_(std::move(outer)),
        map_(std::move(map)),
        place_(map_.place(rank())) {}

  [[nodiscard]] std::string_view backend() const override { return "hierarchical"; }
  [[nodiscard]] bool failed() const override {
    return world_->failed() || inner_->failed() || outer_->failed();
  }
  [[nodiscard]] bool overlaps() const override { return world_->overlaps(); }
  bool progress() override {
    // Each checks for failures of its own group, even if they share one queue.
    const bool w = world_->progress(), i = inner_->progress(), o = outer_->progress();
    const std::shared_ptr<HostQueue> queue = last_queue_.lock();
    return (queue == nullptr || queue->progress()) && w && i && o;
  }

 protected:
  void do_all_reduce(TensorView x, ReduceOp op, Stream stream, CallInfo info) override;
  void do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts, TensorView out,
                           Stream stream, CallInfo info) override;
  void do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts, TensorView out,
                       Stream stream, CallInfo info) override;
  void do_broadcast(TensorView x, int root, Stream stream, CallInfo info) override;
  void do_exchange(ConstTensorView x, std::span<const Route> routes, TensorView out, Stream stream,
                   CallInfo info) override;
  void do_barrier(CallInfo info) override;
  std::shared_ptr<Communicator> do_split(int color, int key, CallInfo) override {
    settle_before(Stream::cpu());
    return world_->split(color, key);
  }
  void do_abort(std::string_view reason) noexcept override { world_->abort(reason); }

 private:
  /// Runs body(), which issues the parts of one collective on `stream`, and propagates their
  /// failure to every rank.
  template <class Body>
  void compose(const Stream& stream, const CallInfo& info, Memory kept, Body body);
  void settle_before(const Stream& stream);
  void issue(const Stream& stream, std::unique_ptr<HostTask> task);
  Memory scratch(std::size_t bytes);

  std::shared_ptr<Communicator> world_, inner_, outer_;
  NodeMap map_;
  int place_;
  std::vector<Memory> pool_;  ///< Scratch memory; a block with one reference is free.
  std::weak_ptr<HostQueue> last_queue_;
};

void HierarchicalCommunicator::settle_before(const Stream& stream) {
  const std::shared_ptr<HostQueue> last = last_queue_.lock();
  if (last != nullptr && last.get() != stream.queue()) last->drain();
  last_queue_.reset();
  if (stream.queue() != nullptr) last_queue_ = stream.queue()->weak_from_this();
}

void HierarchicalCommunicator::issue(const Stream& stream, std::unique_ptr<HostTask> task) {
  if (stream.queue() != nullptr)
    stream.queue()->submit(std::move(task));
  else
    task->advance();
}

Memory HierarchicalCommunicator::scratch(std::size_t bytes) {
  for (Memory& memory : pool_) {
    if (memory.use_count() > 1) continue;
    if (memory->size() < bytes) memory->resize(bytes);
    return memory;
  }
  return pool_.emplace_back(std::make_shared<std::vector<std::byte>>(bytes));
}

template <class Body>
void HierarchicalCommunicator::compose(const Stream& stream, const CallInfo& info, Memory kept,
                                       Body body) {
  settle_before(stream);
  try {
    body();
    if (stream.queue() != nullptr)
      stream.queue()->submit(
          std::make_unique<GuardTask>(*stream.queue(), world_, info.describe(), kept));
  } catch (const CommError& error) {
    if (kept != nullptr) leak_until_exit(std::move(kept));
    world_->abort(error.what());
    throw;
  }
}

void HierarchicalCommunicator::do_all_reduce(TensorView x, ReduceOp op, Stream stream,
                                             CallInfo info) {
  const std::vector<std::int64_t> offsets = even_offsets(x.numel(), map_.places);
  std::vector<std::int64_t> counts;
  for (std::size_t l = 0; l + 1 < offsets.size(); ++l)
    counts.push_back(offsets[l + 1] - offsets[l]);
  const auto l = static_cast<std::size_t>(place_);
  const TensorView whole = x.empty() ? x : x.flat();
  const TensorView mine = x.empty() ? x : whole.slice(0, offsets[l], counts[l]);
  compose(stream, info, nullptr, [&] {
    if (op == ReduceOp::sum)
      inner_->reduce_scatter_v(whole, counts, mine, stream, info.name);
    else
      inner_->all_reduce(whole, op, stream, info.name);  // there is no reduce_scatter of maxima
    outer_->all_reduce(mine, op, stream, info.name);
    inner_->all_gather_v(mine, counts, whole, stream, info.name);
  });
}

void HierarchicalCommunicator::do_reduce_scatter_v(TensorView x,
                                                   std::span<const std::int64_t> counts,
                                                   TensorView out, Stream stream, CallInfo info) {
  const std::vector<std::int64_t> places = map_.counts_of_places(counts);
  const std::vector<std::int64_t> nodes = map_.counts_at(place_, counts);
  const Memory memory = scratch(x.bytes());
  const TensorView whole(memory->data(), x.dtype(), {x.numel()});
  const auto l = static_cast<std::size_t>(place_);
  const TensorView mine = whole.slice(0, sum_before(places, place_), places[l]);
  compose(stream, info, memory, [&] {
    issue(stream, std::make_unique<ReorderTask>(ReorderTask::Direction::to_places,
                                                Reordering(map_, counts, size_of(x.dtype())),
                                                x.raw(), memory->data(), memory));
    inner_->reduce_scatter_v(whole, places, mine, stream, info.name);
    outer_->reduce_scatter_v(mine, nodes, out, stream, info.name);
  });
}

void HierarchicalCommunicator::do_all_gather_v(ConstTensorView x,
                                               std::span<const std::int64_t> counts, TensorView out,
                                               Stream stream, CallInfo info) {
  const std::vector<std::int64_t> places = map_.counts_of_places(counts);
  const std::vector<std::int64_t> nodes = map_.counts_at(place_, counts);
  const Memory memory = scratch(out.bytes());
  const TensorView whole(memory->data(), out.dtype(), {out.numel()});
  const auto l = static_cast<std::size_t>(place_);
  const TensorView mine = whole.slice(0, sum_before(places, place_), places[l]);
  compose(stream, info, memory, [&] {
    outer_->all_gather_v(x, nodes, mine, stream, info.name);
    inner_->all_gather_v(mine, places, whole, stream, info.name);
    issue(stream, std::make_unique<ReorderTask>(ReorderTask::Direction::to_ranks,
                                                Reordering(map_, counts, size_of(out.dtype())),
                                                memory->data(), out.raw(), memory));
  });
}

void HierarchicalCommunicator::do_broadcast(TensorView x, int root, Stream stream, CallInfo info) {
  compose(stream, info, nullptr, [&] {
    // First between nodes at the root's place, then inside the nodes.
    if (place_ == map_.place(root)) outer_->broadcast(x, map_.node(root), stream, info.name);
    inner_->broadcast(x, map_.place(root), stream, info.name);
  });
}

/// A message has one way, so it needs no levels.
void HierarchicalCommunicator::do_exchange(ConstTensorView x, std::span<const Route> routes,
                                           TensorView out, Stream stream, CallInfo info) {
  compose(stream, info, nullptr, [&] { world_->exchange(x, routes, out, stream, info.name); });
}

void HierarchicalCommunicator::do_barrier(CallInfo info) {
  // A rank passes the outer barrier only after the inner barriers of all nodes.
  compose(Stream::cpu(), info, nullptr, [&] {
    inner_->barrier(info.name);
    outer_->barrier(info.name);
  });
}

Hierarchy compose(std::shared_ptr<Communicator> world, NodeMap map) {
  Hierarchy result;
  const int rank = world->rank();
  result.inner = world->split(map.node(rank), rank);
  result.outer = world->split(map.place(rank), map.node(rank));
  result.comm = std::make_shared<HierarchicalCommunicator>(std::move(world), std::move(map),
                                                           result.inner, result.outer);
  return result;
}

void require_world(const std::shared_ptr<Communicator>& world) {
  DKFAC_CHECK(world != nullptr, "[make_hierarchical] the communicator is null");
}

}  // namespace

Hierarchy make_hierarchical(std::shared_ptr<Communicator> world, int ranks_per_node) {
  require_world(world);
  // Compared first, so that no rank throws alone while the others wait for it.
  require_equal(*world, std::to_string(ranks_per_node), "number of ranks per node");
  DKFAC_CHECK(ranks_per_node > 0 && world->size() % ranks_per_node == 0, "[make_hierarchical] ",
              ranks_per_node, " ranks per node for ", world->size(),
              " ranks; the number must be positive and divide them");
  std::vector<std::string> labels;
  for (int r = 0; r < world->size(); ++r) labels.push_back(std::to_string(r / ranks_per_node));
  return compose(std::move(world), make_node_map(labels));
}

Hierarchy make_hierarchical_by_host(std::shared_ptr<Communicator> world) {
  require_world(world);
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return compose(world, make_node_map(all_gather_strings(*world, host.data())));
}

}  // namespace dkfac::comm
