#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "comm/collective/bucketed_reduce.h"

namespace dkfac::comm {

/// All-gather, within grid rows, of blocks that the workers of a layer compute and all ranks need.
/// Each rank has one buffer for all blocks. If every rank is a worker of every layer, or no block
/// has an element, there is nothing to gather, no buffer and no message.
class AllGather {
 public:
  /// Allocates the blocks of `slots`, in their order; `dtype` is that of blocks and wire.
  AllGather(Context& ctx, const WorkerGrid& grid, std::string name, std::vector<Slot> slots,
            DType dtype);

  [[nodiscard]] bool needed() const { return grid_.columns() > 1; }
  /// Returns block `index` [count], written by the workers of its owner, read by all after run().
  [[nodiscard]] TensorView block(int index);
  [[nodiscard]] std::size_t bytes() const { return buffer_.bytes(); }
  /// Enqueues the all-gather on the context's stream.
  void run();

 private:
  Context& ctx_;
  std::string name_;
  WorkerGrid grid_;
  std::vector<std::int64_t> counts_, numel_;
  BucketPlan plan_;
  Tensor buffer_;
};

}  // namespace dkfac::comm
