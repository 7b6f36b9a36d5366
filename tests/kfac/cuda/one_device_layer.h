#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"
#include "support/on_device.h"

/// One layer on a device or on the host, for cases that a whole network does not produce.
namespace dkfac::testing {

/// A Preconditioner over one layer without a bias, on a stream of its caller.
class OneLayer {
 public:
  /// What records are converted to.
  std::optional<DType> recorded;

  OneLayer(Device device, std::shared_ptr<comm::Communicator> comm,
           const kfac::CurvatureOptions& options, const LinearSpec& spec)
      : OneLayer(device, std::move(comm), options, spec, {spec.in}, {spec.out}) {}
  /// A convolution 1x1 (nhwc) of images of one row. A template, so that braces initialize a
  /// LinearSpec.
  template <std::same_as<Conv2dSpec> Spec>
  OneLayer(Device device, std::shared_ptr<comm::Communicator> comm,
           const kfac::CurvatureOptions& options, const Spec& spec, std::int64_t pixels = 1)
      : OneLayer(device, std::move(comm), options, spec, {1, pixels, spec.in},
                 {1, pixels, spec.out}) {}

  /// x[n,in] and dy[n,out], each in as many records as there are micro-batches.
  template <class T>
  kfac::StepReport step(const std::vector<T>& x, const std::vector<T>& dy, RecordScale scale = {}) {
    const int parts = preconditioner_.options().statistics.micro_batches;
    for (int part = 0; part < parts; ++part) {
      Tensor in = record(x, in_, part, parts), out = record(dy, out_, part, parts);
      preconditioner_.record_input(fc_, in, caller_.stream(), scale);
      preconditioner_.record_grad_output(fc_, out, caller_.stream(), scale);
    }
    std::vector<T> g;
    for (std::int64_t i = 1; i <= dkfac::weight_numel(spec_); ++i)
      g.push_back(static_cast<T>(std::sin(static_cast<double>(i))));
    Tensor there = to_device(caller_, view_of(g.data(), {std::ssize(g)}));
    const std::vector<kfac::LayerGrad> grads{{fc_, there, {}}};
    const std::int64_t before = host_waits();
    const kfac::StepReport report = preconditioner_.step(grads, caller_.stream());
    waits = host_waits() - before;
    gradient = device_values(caller_, there);
    return report;
  }

  [[nodiscard]] std::string describe() const { return preconditioner_.describe(); }
  [[nodiscard]] kfac::LayerFactors read_factors() { return preconditioner_.read_factors(fc_); }
  void visit_state(StateVisitor& visitor) { preconditioner_.visit_state(visitor); }

  std::vector<double> gradient;
  std::int64_t waits = 0;

 private:
  OneLayer(Device device, std::shared_ptr<comm::Communicator> comm,
           const kfac::CurvatureOptions& options, LayerSpec spec, std::vector<std::int64_t> in,
           std::vector<std::int64_t> out)
      : caller_(device),
        spec_(spec),
        in_(std::move(in)),
        out_(std::move(out)),
        preconditioner_(std::move(comm), options, device),
        fc_(preconditioner_.add_layer("fc", std::move(spec))) {}

  /// A part of samples of the shape `sample`.
  template <class T>
  Tensor record(const std::vector<T>& all, const std::vector<std::int64_t>& sample, int part,
                int parts) {
    std::int64_t each = 1;
    for (const std::int64_t d : sample) each *= d;
    const std::int64_t n = std::ssize(all) / each / parts;
    const T* from = all.data() + part * n * each;
    const Shape shape = sample.size() == 1 ? Shape{n, each} : Shape{n, 1, sample[1], sample[2]};
    Tensor there = to_device(caller_, view_of(from, shape));
    if (!recorded) return there;
    Tensor converted = Tensor::empty(caller_, shape, *recorded);
    ops::cast(caller_, there, converted);
    return converted;
  }

  Context caller_;
  LayerSpec spec_;
  std::vector<std::int64_t> in_, out_;  ///< Shapes of a sample.
  kfac::Preconditioner preconditioner_;
  LayerId fc_;
};

inline kfac::CurvatureOptions base() {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.statistics.new_weight = 0.3;
  options.dtype = DType::f64;
  return options;
}

template <class T>
std::vector<T> noise(std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<T> x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(static_cast<T>(random.normal()));
  return x;
}

template <class T>
kfac::StepReport noisy_step(OneLayer& layer, const LinearSpec& spec, std::uint64_t step) {
  return layer.step(noise<T>(12 * spec.in, step), noise<T>(12 * spec.out, 100 + step));
}

}  // namespace dkfac::testing
