#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/device.h"
#include "dkfac/core/export.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/options.h"

namespace dkfac::kfac {

/// Work and memory that one layer costs its owner.
struct DKFAC_API LayerLoad {
  double flops = 0;        ///< Inverting and preconditioning; 0 for layers without factors.
  std::int64_t bytes = 0;  ///< Parameters plus statistics.
};
/// Load of a layer: n^3 flops per factor (potrf + potri) plus the two products of the
/// preconditioner. block_width: InverseOptions::block_width, not 0.
[[nodiscard]] DKFAC_API LayerLoad layer_load(const LayerSpec& spec, DType dtype,
                                             int block_width = -1);

/// The options with the block width that prepare() chooses for these layers in the place of
/// InverseOptions::block_width = 0 (docs/math.md, "Diagonal blocks"). A pure function, equal on
/// every rank. LinearSpec::max_rows, where known, decides; else what the factors need of memory.
[[nodiscard]] DKFAC_API CurvatureOptions with_block_width(const CurvatureOptions& options,
                                                          std::span<const LayerSpec> specs);

/// Assigns an owner to each layer; a pure function of its arguments, equal on every rank. Layers
/// with factors are assigned in order of decreasing flops (ties by index), each to the rank with
/// the least flops so far (ties to the fewest bytes, then the lowest rank). The others follow,
/// largest first, each to the rank with the fewest bytes. world_size >= 1.
[[nodiscard]] DKFAC_API std::vector<int> assign(std::span<const LayerLoad> loads, int world_size);

/// The parts of a LayerLoad that may be on different ranks (DistributionOptions::split_factors).
struct DKFAC_API FactorLoads {
  double a = 0, g = 0;  ///< Inverting the factors.
  double apply = 0;     ///< Preconditioning.
  /// Sending the rebuilt inverse to another rank, for each of the two ranks.
  double send_a = 0, send_g = 0;
  std::int64_t bytes = 0;  ///< As LayerLoad::bytes.
  /// Ranks that invert a factor together (DistributionOptions::split_wide); `a` and `g` are then
  /// what each of them does, with its messages.
  int ranks_a = 1, ranks_g = 1;
  /// What the owner does of a layer that is not divided.
  [[nodiscard]] double whole() const { return a + g + apply; }
};
/// The parts of layer_load(). A byte that travels counts as 10 operations: 10 GB/s beside the 100
/// GFLOP/s of operations.
[[nodiscard]] DKFAC_API FactorLoads factor_loads(const LayerSpec& spec, DType dtype,
                                                 int block_width = -1);

/// The ranks of a layer.
struct DKFAC_API LayerOwners {
  int layer = 0;     ///< The owner, which preconditions it.
  int a = 0, g = 0;  ///< Those that average and invert A and G.
  /// Ranks that invert A, or G, together: with ranks_a = 4 the four consecutive ones, from a
  /// multiple of 4 on, of which one is `a`.
  int ranks_a = 1, ranks_g = 1;
  LayerOwners() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a rank is the owner of all.
  constexpr LayerOwners(int all) : LayerOwners(all, all, all) {}
  constexpr LayerOwners(int owner, int of_a, int of_g) : layer(owner), a(of_a), g(of_g) {}
  bool operator==(const LayerOwners&) const = default;
};
/// assign() that may give A and G of a layer to different ranks; a pure function of its arguments.
/// No plan can load its busiest rank less than the mean, or than the largest factor. Each layer, in
/// the order of assign(), takes the first of these placements that keeps its ranks within 2 % of
/// that: whole on the rank with the least work so far; without its narrower factor, which goes to
/// the next rank; the wider factor alone, and the rest on the next rank. Without one, it takes the
/// placement that loads the busiest of its ranks least. With `apart` false all layers stay whole,
/// as by assign(). A layer with a factor for n ranks goes to those n of which the busiest has the
/// least work so far; its owner is the one of them that has least to do, with the directions that
/// its column of `workers` ranks makes (AssignmentDetails::workers). ranks_a, ranks_g <=
/// world_size; workers >= 1 divides it.
[[nodiscard]] DKFAC_API std::vector<LayerOwners> assign_factors(std::span<const FactorLoads> loads,
                                                                int world_size, bool apart = true,
                                                                int workers = 1);

/// Bytes of a layer's curvature that persist between steps.
struct DKFAC_API CurvatureBytes {
  std::int64_t averages = 0;  ///< Of the statistics, on the owner.
  std::int64_t earlier = 0;   ///< Adaptive rule: the last two statistics, on the owner.
  std::int64_t inverses = 0;  ///< With eigenvalues and EKFAC scales, on all workers of the layer.
};
[[nodiscard]] DKFAC_API CurvatureBytes curvature_bytes(const LayerSpec& spec,
                                                       const CurvatureOptions& options,
                                                       Device device = Device::cpu());

/// Bytes per parameter element that a rank keeps for the layers it preconditions.
struct DKFAC_API KeptParameters {
  std::int64_t momentum = 0;
  std::int64_t masters = 0;  ///< Master weights for a narrower weight_wire.
};

struct DKFAC_API NamedBytes {
  std::string name;
  std::int64_t bytes = 0;
};

/// Arguments of describe_assignment() beside the layers.
struct DKFAC_API AssignmentDetails {
  int world_size = 1;
  int workers = 1;  ///< Ranks that precondition a layer: its owner and the ranks that differ from
                    ///< it by a multiple of world_size / workers.
  const CurvatureOptions& curvature;
  Device device = {};  ///< Decides the forms of the factors.
  /// Predicted seconds of a step of each layer; empty: unknown.
  std::span<const FactorLoads> seconds = {};
  KeptParameters kept = {};
  std::span<const NamedBytes> buffers = {};  ///< Of this rank; entries of 0 bytes are omitted.
};

/// Returns a table: layer, shape, owner and other workers, other ranks that invert, groups, widths
/// and forms of A and G, bytes of the statistics, share of the work, predicted milliseconds per
/// step, and the reason why a layer has no curvature. Below it: what each rank keeps, buffers, how
/// even the counted work is, and totals.
[[nodiscard]] DKFAC_API std::string describe_assignment(std::span<const std::string> names,
                                                        std::span<const LayerSpec> specs,
                                                        std::span<const LayerOwners> owners,
                                                        const AssignmentDetails& details);

/// Returns that table, without buffers, as the ranks of a group of `world_size` would make it: with
/// assign() or assign_factors() of counted work, or of costs measured here, as
/// options.distribution says.
/// Otherwise a pure function of its arguments, without a communicator or tensors.
[[nodiscard]] DKFAC_API std::string describe_plan(std::span<const std::string> names,
                                                  std::span<const LayerSpec> specs,
                                                  const CurvatureOptions& options, int world_size,
                                                  KeptParameters kept = {}, Device device = {});

}  // namespace dkfac::kfac
