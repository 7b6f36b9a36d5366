#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "app/plan/timeline.h"

/// What a step is predicted for: processors, and the links between them.
namespace dkfac::app::planning {

/// Bytes per second in one direction of one rank, and seconds until the first byte arrives.
struct Link {
  double bytes_per_s = 0, latency = 0;
};

/// Rates that a processor sustains. Those of a named one are its published peaks times shares that
/// are assumed to hold for all of them (docs/scaling.md): estimates.
struct Processor {
  std::string name;
  double products16 = 0;       ///< FLOP/s of a large product with 16-bit operands.
  double products32 = 0;       ///< The same in f32, of the widths of factors.
  double products_tf32 = 0;    ///< The same with operands rounded to TF32.
  double copy = 0;             ///< Bytes per second, read and written.
  double memory = 0;           ///< Bytes.
  double gap = 1.3e-6;         ///< Seconds between two kernels.
  double cholesky = 0.3;       ///< Share of products32 of many inversions at once.
  double cholesky_one = 0.13;  ///< The same of one after the other.
  /// Share of `products16` of a convolution whose narrower side has up to 64, 128, 256, and more
  /// channels: forward, gradient of the input, gradient of the weights.
  std::array<double, 4> forward{0.40, 0.45, 0.55, 0.60}, data{0.40, 0.50, 0.55, 0.65},
      weights{0.40, 0.40, 0.40, 0.47};
  bool bf16 = true;      ///< Whether it multiplies bf16.
  double passes = 0;     ///< FLOP/s of forward and backward, where known; 0: by the rates above.
  bool overlaps = true;  ///< Whether collectives advance while it computes.
  Link inner = {},
       outer = {};   ///< Of its usual machines: within a node and between nodes, of one rank.
  int per_node = 8;  ///< Ranks of such a node.

  /// Seconds of a phase on one rank, measured over computed; links are not in them, but the copies
  /// of what they carry.
  std::array<double, kPhases> corrections = uncorrected();
  double kfac_update = 1;  ///< The same of K-FAC's update; `corrections` has that of SGD.
  bool measured = false;   ///< Whether they are of a machine at hand.

  [[nodiscard]] static constexpr std::array<double, kPhases> uncorrected() {
    std::array<double, kPhases> ones{};
    ones.fill(1);
    return ones;
  }
  [[nodiscard]] double share(const std::array<double, 4>& shares, double width) const {
    return shares[width <= 64 ? 0 : width <= 128 ? 1 : width <= 256 ? 2 : 3];
  }
};

/// "v100", "a100", "h100", "h200", ... in letters of either case; throws InvalidArgument that lists
/// them.
[[nodiscard]] Processor processor_of(std::string_view name);
[[nodiscard]] std::vector<std::string> processor_names();

/// How collectives move data (docs/scaling.md, "Collectives").
enum class Algorithm : unsigned char {
  nccl,     ///< Chains through all ranks to each owner; trees for all_reduce.
  direct,   ///< Each rank sends to each other: what `mpi` and `tcp` do up to 8 ranks.
  halving,  ///< Recursive halving and doubling: `mpi` and `tcp` beyond.
  host      ///< direct up to 8 ranks, halving beyond.
};

struct Cluster {
  Processor processor = {};
  int ranks = 1, per_node = 8;  ///< Ranks of a node.
  Link inner = {}, outer = {};
  Algorithm algorithm = Algorithm::nccl;
};

}  // namespace dkfac::app::planning
