#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/core/layer_spec.h"
#include "dkfac/nn/model.h"

#include "app/plan/machine.h"

/// A network as the plan sees it, and the seconds of its passes.
namespace dkfac::app::planning {

enum class PassKind : unsigned char {
  product,        ///< Linear, Conv2d.
  normalisation,  ///< With the activation behind it.
  pass,           ///< Reads its input and writes its output.
  nothing         ///< A view, or part of the layer before it.
};

/// A layer without children, in forward order. Operations and elements are those of one sample.
struct PassLayer {
  std::string name;
  PassKind kind = PassKind::nothing;
  int spec = -1;               ///< Index into Network::specs; -1: it has no parameters.
  std::int64_t positions = 1;  ///< Output positions.
  double flops = 0;            ///< Of the forward product, and of each of the two in backward.
  double width = 0;            ///< The narrower side of its weights.
  double in = 0, out = 0;      ///< Elements.
};

struct Network {
  std::string name;
  std::vector<PassLayer> layers = {};
  std::vector<std::string> names;  ///< Of layers with parameters, as optimizers get them.
  std::vector<LayerSpec> specs;
  DType compute = DType::f32;  ///< Of activations.
  double training_flops = 0;   ///< Of forward and backward of one sample.
  double pass_bytes = 0;       ///< Memory of a step of `batch` samples without the optimizer.
  std::int64_t batch = 1;      ///< Samples of a rank in one pass.

  [[nodiscard]] double parameters(int spec) const;
  [[nodiscard]] double parameters() const;
};
/// samples: of a step over all ranks. batch: of a rank and pass.
[[nodiscard]] Network network_of(const nn::ModelOptions& options, std::int64_t samples,
                                 std::int64_t batch);

struct LayerSeconds {
  double forward = 0, parameters = 0, input = 0;
};
/// Seconds of a pass over Network::batch samples: the longer of operations and bytes.
[[nodiscard]] std::vector<LayerSeconds> pass_seconds(const Network& network,
                                                     const Processor& processor);

}  // namespace dkfac::app::planning
