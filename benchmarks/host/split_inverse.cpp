// Benchmark of a wide factor that several ranks of one thread invert together
// (DistributionOptions::split_wide), in turns with one that its owner inverts alone: the seconds of
// rebuilds on the owner. Directions are compared after timing. One JSON object.
//
// usage: bench_split_inverse [ranks] [width]

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <vector>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

namespace {

using namespace dkfac;

constexpr std::int64_t kSamples = 32, kOutputs = 512;
constexpr int kSteps = 12;  // Of which 1, 2, 3, 5, 8 and 12 rebuild.

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return x[x.size() / 2];
}

std::vector<float> normal(std::int64_t numel, std::uint64_t seed) {
  std::vector<float> x(static_cast<std::size_t>(numel));
  Random random(seed);
  for (float& value : x) value = static_cast<float>(random.normal());
  return x;
}

/// One linear layer, of whose rebuilds A takes nearly all.
class Layer {
 public:
  Layer(const std::shared_ptr<comm::Communicator>& comm, std::int64_t width, bool together)
      : width_(width), preconditioner_(comm, options(together), Device::cpu(), {.threads = 1}) {
    id_ = preconditioner_.add_layer("fc", LinearSpec{.in = width, .out = kOutputs, .bias = false});
    preconditioner_.prepare();
  }

  /// The direction of a fixed gradient is in `direction`.
  kfac::StepReport step(int number, int rank, std::vector<float>& direction) {
    const auto seed = static_cast<std::uint64_t>(100 * number + rank);
    const std::vector<float> x = normal(kSamples * width_, seed),
                             dy = normal(kSamples * kOutputs, seed);
    preconditioner_.record_input(id_, view_of(x.data(), {kSamples, width_}));
    preconditioner_.record_grad_output(id_, view_of(dy.data(), {kSamples, kOutputs}));
    direction.assign(static_cast<std::size_t>(kOutputs * width_), 1);
    const kfac::LayerGrad grad{id_, view_of(direction.data(), {kOutputs, width_}), {}};
    return preconditioner_.step({&grad, 1});
  }

 private:
  /// Explicit inverses, as of many steps, of which some are early.
  static kfac::CurvatureOptions options(bool together) {
    kfac::CurvatureOptions options;
    options.refresh.statistics_interval = 1;
    options.refresh.inverse_interval = 100;
    options.inverse.block_width = -1;
    options.statistics.low_rank = false;
    options.distribution.split_wide = together;
    return options;
  }

  std::int64_t width_;
  kfac::Preconditioner preconditioner_;
  LayerId id_{};
};

/// Over the largest element.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
    scale = std::max(scale, std::abs(double{a[i]}));
  }
  return most / scale;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::int64_t width = argc > 2 ? std::atoll(argv[2]) : 4608;
  std::vector<double> alone, together;
  double most = 0;
  comm::run_ranks(ranks, [&](auto comm) {
    Layer one(comm, width, false), several(comm, width, true);
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<float> expected, found;
      comm->barrier();
      const double before = one.step(step, comm->rank(), expected).seconds.inverse;
      comm->barrier();
      const kfac::StepReport report = several.step(step, comm->rank(), found);
      if (comm->rank() > 0) continue;  // The owner of the only layer is rank 0.
      most = std::max(most, difference(found, expected));
      if (step == 1 || !report.inverses_refreshed) continue;  // The first one warms up.
      alone.push_back(before);
      together.push_back(report.seconds.inverse);
    }
  });
  // That of one rank's and several ranks' inverses.
  const double bound = 4 * static_cast<double>(width) * std::numeric_limits<float>::epsilon();
  std::cout << "{\"ranks\": " << ranks << ", \"width\": " << width
            << ", \"rebuilds\": " << alone.size() << ", \"seconds_alone\": " << median(alone)
            << ", \"seconds\": " << median(together)
            << ", \"speed_up\": " << median(alone) / median(together)
            << ", \"difference\": " << most << ", \"bound\": " << bound << "}\n";
  return most <= bound ? 0 : 80;
}
