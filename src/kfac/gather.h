#pragma once

#include <memory>
#include <numeric>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/tensor.h"

#include "kfac/exchange.h"

namespace dkfac::kfac {

/// One buffer on every rank for blocks that each owner computes and all ranks need.
class Gather {
 public:
  /// Blocks in the order of `slots`.
  Gather(Context& ctx, const comm::Communicator& comm, std::string name,
         const std::vector<Slot>& slots, DType dtype)
      : name_(std::move(name)), counts_(static_cast<std::size_t>(comm.size()), 0) {
    for (const Slot& slot : slots) {
      numel_.push_back(slot.count);
      counts_[static_cast<std::size_t>(slot.owner)] += slot.count;
    }
    plan_ = plan_exchange(slots, comm.size(),
                          std::accumulate(numel_.begin(), numel_.end(), std::int64_t{1}), 0);
    buffer_ = Tensor::zeros(ctx, {plan_.numel}, dtype);
  }

  /// [count] of block `index`: written by its owner, read by all after run().
  [[nodiscard]] TensorView block(int index) {
    const auto i = static_cast<std::size_t>(index);
    return buffer_.view().slice(0, plan_.offsets[i], numel_[i]);
  }
  [[nodiscard]] std::size_t bytes() const { return buffer_.bytes(); }

  /// Complete when it returns.
  void run(comm::Communicator& comm) {
    const auto own = counts_.begin() + comm.rank();
    const std::int64_t start = std::accumulate(counts_.begin(), own, std::int64_t{0});
    comm.all_gather_v(buffer_.view().slice(0, start, *own), counts_, buffer_, Stream::cpu(), name_);
  }

 private:
  std::string name_;
  std::vector<std::int64_t> counts_, numel_;
  ExchangePlan plan_;
  Tensor buffer_;
};

}  // namespace dkfac::kfac
