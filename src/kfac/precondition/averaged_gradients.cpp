#include "kfac/precondition/averaged_gradients.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "core/shared/read_back.h"

namespace dkfac::kfac {
namespace {

constexpr std::int64_t kElements = 16;  ///< Of a layer, evenly spaced.
constexpr int kLayers = 2;              ///< At either end.
/// Sums in different orders are some eps of f32 apart, gradients of different samples as far as
/// they are large.
constexpr double kTolerance = 1e-3;

std::vector<double> some_elements(Context& ctx, std::span<const NamedGradient> gradients) {
  const auto layers = static_cast<std::int64_t>(gradients.size());
  Tensor found = Tensor::zeros(ctx, {layers * kElements}, DType::f64);
  for (std::int64_t i = 0; i < layers; ++i) {
    const ConstTensorView values = gradients[static_cast<std::size_t>(i)].values.flat();
    const std::int64_t count = std::min(kElements, values.numel());
    for (std::int64_t k = 0; k < count; ++k)
      ops::cast(ctx, values.slice(0, k * values.numel() / count, 1),
                found.view().slice(0, i * kElements + k, 1));
  }
  return read_back<double>(ctx, found);
}

}  // namespace

bool require_averaged(Context& ctx, comm::Communicator& comm,
                      std::vector<NamedGradient> gradients) {
  if (gradients.size() > 2 * kLayers)
    gradients.erase(gradients.begin() + kLayers, gradients.end() - kLayers);
  const std::vector<double> mine = some_elements(ctx, gradients);
  std::string bytes(mine.size() * sizeof(double), '\0');
  std::memcpy(bytes.data(), mine.data(), bytes.size());
  std::vector<double> most = mine, least = mine, theirs(mine.size());
  for (const std::string& one : comm::all_gather_strings(comm, bytes)) {
    std::memcpy(theirs.data(), one.data(), bytes.size());
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      most[i] = std::max(most[i], theirs[i]);
      least[i] = std::min(least[i], theirs[i]);
    }
  }
  double size = 0, apart = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < most.size(); ++i) {
    size = std::max({size, most[i], -least[i]});
    if (most[i] - least[i] > apart) apart = most[i] - least[i], at = i;
  }
  DKFAC_CHECK(apart <= kTolerance * size, "[step] gradients differ between the ", comm.size(),
              " ranks, of layer '", gradients[at / kElements].layer, "' by up to ", apart / size,
              " of the largest compared; average them over the ranks before the step, as "
              "DistributedDataParallel does, or give each rank a communicator of one rank where it "
              "trains a model of its own");
  return size > 0;
}

}  // namespace dkfac::kfac
