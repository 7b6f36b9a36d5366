#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

namespace dkfac::comm {

/// Sends parts between pairs of ranks, those of a pair as one message.
class PartExchange {
 public:
  /// all: every part that begin() may list, as routes in any order, also several of one pair; they
  /// determine the size of the buffers. Equal on all ranks.
  PartExchange(Context& ctx, std::shared_ptr<Communicator> comm, std::string name, DType dtype,
               std::span<const Route> all);
  /// Lays out the parts of the next run(); equal on all ranks.
  void begin(std::span<const Route> parts);
  /// A part that this rank sends, to be written before run().
  [[nodiscard]] TensorView sent(int part);
  /// A part for this rank, after run().
  [[nodiscard]] TensorView received(int part);
  /// Enqueues the exchange on the context's stream.
  void run();
  [[nodiscard]] std::size_t bytes() const { return sent_.bytes() + received_.bytes(); }

 private:
  /// Place of a part in the buffers of this rank, or -1.
  struct Place {
    std::int64_t sent = -1, received = -1, count = 0;
  };

  Context& ctx_;
  std::shared_ptr<Communicator> comm_;
  std::string name_;
  std::vector<Route> routes_;
  std::vector<Place> places_;
  Tensor sent_, received_;
};

}  // namespace dkfac::comm
