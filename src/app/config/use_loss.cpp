#include <algorithm>
#include <charconv>
#include <cmath>

#include "dkfac/core/error.h"

#include "app/config/keys.h"
#include "app/config/use.h"

namespace dkfac::app {

bool has_batch_norm(const Config& config) {
  return config.model.name != "mlp" && config.model.name != "autoencoder";
}

TrainLoss loss_of(const Config& config) {
  return config.model.name == "autoencoder" ? config.train.reconstruction : TrainLoss::softmax;
}

bool draws_from_part(const Config& config) {
  return config.optimizer.has_curvature() && config.optimizer.fisher == Fisher::monte_carlo &&
         config.optimizer.curvature().statistics.fraction < 1 && !has_batch_norm(config);
}

std::int64_t drawn_part(const Config& config, std::int64_t count) {
  if (!draws_from_part(config) || count == 0) return count;
  const double part = config.optimizer.curvature().statistics.fraction * static_cast<double>(count);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(part)));
}

void check_reconstruction(const Config& config) {
  if (loss_of(config) == TrainLoss::softmax) return;
  DKFAC_CHECK(config.run.target == 0 && config.run.target_top5 == 0,
              "[config] run.target and run.target_top5 are accuracies, which an autoencoder does "
              "not have; use run.target_loss");
  DKFAC_CHECK(!regularize_options(config).any() && config.train.label_smoothing == 0 &&
                  config.run.tta == Tta::none,
              "[config] an autoencoder's targets are its inputs: train.label_smoothing, mixup and "
              "erasing in [augment], and run.tta are for classifiers; leave them out");
  DKFAC_CHECK(config.data.mean_image.empty(),
              "[config] an autoencoder's values are in [0, 1], and data.mean_image would subtract "
              "from them; leave it out");
}

std::vector<std::int64_t> widths_of(const std::string& text) {
  std::vector<std::int64_t> widths;
  const char *at = text.data(), *const end = text.data() + text.size();
  while (at != end) {
    std::int64_t width = 0;
    const auto [after, error] = std::from_chars(at, end, width);
    const bool good = error == std::errc() && width > 0 && width <= 1 << 20 &&
                      (after == end || (*after == '-' && after + 1 != end));
    DKFAC_CHECK(good, "[config] model.widths = \"", shortened(text),
                "\"; write numbers up to 1048576 with dashes between, as in \"400-200-100-30\"");
    widths.push_back(width);
    at = after == end ? end : after + 1;
  }
  return widths;
}

}  // namespace dkfac::app
