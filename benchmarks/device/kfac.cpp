// K-FAC of all ResNet-50 layers on a CUDA device, through the public interface: statistics (A, G),
// inverses and preconditioning, compared with the device's ceilings (products, copies). Checks its
// results (kfac_checks.h) and prints one JSON object. Usage: bench_gpu_kfac
// [--layers resnet50|tiny] [--batch N] [--repeats N] [--json FILE]. Exit code 77: there is no
// CUDA device.

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/device_info.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/preconditioner.h"
#include "dkfac/kfac/statistics.h"

#include "ceilings.h"
#include "kfac_checks.h"
#include "program.h"
#include "resnet50_layers.h"

namespace {

using namespace dkfac;

/// Layer in both sets whose whole factors and direction are checked.
constexpr const char* kChecked = "stage1.0.conv2";

struct Arguments {
  std::string layers = "resnet50";
  int batch = 32, repeats = 5;
};

/// Draws values as after a ReLU (half of them zero) if `positive`, else symmetric ones.
Tensor random_values(Context& ctx, std::int64_t count, bool positive) {
  Random random(positive ? 1 : 2);
  return repeated_values(ctx, count, DType::f16, [&] {
    const double value = random.normal();
    return positive ? std::max(value, 0.0) : value * 0.1;
  });
}

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments),
        ctx_(Device::cuda()),
        layers_(arguments.layers == "tiny" ? tiny_layers() : resnet50_layers(224)) {
    std::int64_t inputs = 0, outputs = 0;
    for (const BenchLayer& layer : layers_) {
      inputs = std::max(inputs, input_shape(layer).numel());
      outputs = std::max(outputs, output_shape(layer).numel());
    }
    x_ = random_values(ctx_, inputs, true);
    dy_ = random_values(ctx_, outputs, false);
    std::int64_t weights = 0;
    for (const BenchLayer& layer : layers_)
      weights = std::max(weights, dkfac::weight_numel(layer.spec));
    gradient_ = random_values(ctx_, weights, false);
  }

  void run(std::ostream& out) {
    out << "{\"what\": \"K-FAC of " << arguments_.layers << "\", \"version\": \"" << version()
        << "\", \"batch\": " << arguments_.batch << ", \"repeats\": " << arguments_.repeats;
    ceilings(out);
    statistics(out);
    const Tensor exact = steps(false, out), rounded = steps(true, out);
    // Operands of two products were rounded to 2^-11; noise does not amplify that.
    const double wrong = checks::largest_difference(ctx_, exact, rounded);
    if (!(wrong < 1e-2))
      throw std::runtime_error("a direction by TF32 products is wrong: " + std::to_string(wrong));
    out << ", \"difference_tf32\": " << wrong;
    out << "}\n";
  }

 private:
  [[nodiscard]] Shape input_shape(const BenchLayer& layer) const {
    if (layer.name == "fc") return {arguments_.batch, layer.in_c};
    return {arguments_.batch, layer.in_hw, layer.in_hw, layer.in_c};
  }
  [[nodiscard]] Shape output_shape(const BenchLayer& layer) const {
    if (layer.name == "fc") return {arguments_.batch, layer.out_c};
    return {arguments_.batch, layer.out_hw, layer.out_hw, layer.out_c};
  }
  [[nodiscard]] ConstTensorView input(const BenchLayer& layer) const {
    const Shape shape = input_shape(layer);
    return x_.view().slice(0, 0, shape.numel()).reshape(shape);
  }
  [[nodiscard]] ConstTensorView output(const BenchLayer& layer) const {
    const Shape shape = output_shape(layer);
    return dy_.view().slice(0, 0, shape.numel()).reshape(shape);
  }

  /// Returns the first samples of a batch.
  [[nodiscard]] static ConstTensorView first(ConstTensorView batch, std::int64_t samples) {
    return batch.slice(0, 0, std::min(samples, batch.dim(0)));
  }

  void ceilings(std::ostream& out) {
    const Ceilings reached =
        measure_ceilings(arguments_.layers == "tiny" ? 256 : 8192, arguments_.repeats);
    out << ", \"gemm_f16_tflops\": " << reached.gemm_tflops
        << ", \"copy_gb_per_s\": " << reached.copy_gb_per_s;
  }

  void statistics(std::ostream& out) {
    Tensor square = Tensor::zeros(ctx_, {largest(), largest()});
    const auto of = [&](std::int64_t d) {
      return square.view().flat().slice(0, 0, d * d).reshape({d, d});
    };
    const auto n = static_cast<double>(arguments_.batch);
    double a_ms = 0, g_ms = 0, wrong = 0, whole = 0;
    std::ostringstream rows;
    for (const BenchLayer& layer : layers_) {
      const TensorView a = of(dkfac::a_dim(layer.spec)), g = of(dkfac::g_dim(layer.spec));
      const double ta = median_ms(ctx_, {arguments_.repeats}, [&] {
        kfac::compute_a(ctx_, layer.spec,
                        {.data = input(layer), .global_batch = n, .operand = checks::kOperand}, 0,
                        a);
      });
      const double tg = median_ms(ctx_, {arguments_.repeats}, [&] {
        kfac::compute_g(ctx_, layer.spec,
                        {.data = output(layer), .global_batch = n, .operand = checks::kOperand}, 0,
                        g);
      });
      wrong = std::max(wrong, checks::diagonal_of_a(ctx_, layer, first(input(layer), 8), a));
      // Few positions or a small kernel, so the host can compute the factors in full.
      if (layer.name == "stem" || layer.name == kChecked)
        whole = std::max(whole, checks::whole_factors(ctx_, layer, first(input(layer), 2),
                                                      first(output(layer), 2)));
      rows << (rows.tellp() > 0 ? ", " : "") << "{\"layer\": \"" << layer.name
           << "\", \"a_dim\": " << a.dim(0) << ", \"g_dim\": " << g.dim(0) << ", \"a_ms\": " << ta
           << ", \"g_ms\": " << tg << "}";
      a_ms += ta;
      g_ms += tg;
    }
    // Sums of f16 products in f32 in another order: n eps of the magnitudes, far below this.
    if (!(wrong < 1e-3)) throw std::runtime_error("a factor A is wrong: " + std::to_string(wrong));
    if (!(whole < 1e-3))
      throw std::runtime_error("A or G of a small layer is wrong: " + std::to_string(whole));
    out << ", \"a_ms\": " << a_ms << ", \"g_ms\": " << g_ms
        << ", \"statistics_ms\": " << a_ms + g_ms << ", \"error_of_diagonals\": " << wrong
        << ", \"error_of_whole_factors\": " << whole << ", \"layers\": [" << rows.str() << "]";
  }

  [[nodiscard]] std::int64_t largest() const {
    std::int64_t d = 0;
    for (const BenchLayer& layer : layers_)
      d = std::max({d, dkfac::a_dim(layer.spec), dkfac::g_dim(layer.spec)});
    return d;
  }

  /// Times whole steps of the preconditioner, with all inverses and with none, and returns the
  /// direction of the checked layer. With TF32, whose inverses are the same, keys end in _tf32.
  Tensor steps(bool tf32, std::ostream& out) {
    const Stream stream = ctx_.stream();
    kfac::CurvatureOptions options;
    options.damping = 1e-2;
    // Long intervals; the first step computes all inverses.
    options.refresh.statistics_interval = options.refresh.inverse_interval = 1000000;
    options.precondition_tf32 = tf32;
    kfac::Preconditioner kfac(comm::make_self(), options, Device::cuda());
    std::vector<kfac::LayerGrad> grads;
    std::vector<Tensor> tensors;
    std::size_t checked = 0;
    for (const BenchLayer& layer : layers_) {
      const LayerId id = kfac.add_layer(layer.name, layer.spec);
      const auto tensor = [&](std::int64_t count) {
        if (count == 0) return TensorView{};
        tensors.push_back(Tensor::empty(ctx_, {count}));
        return tensors.back().view();
      };
      if (layer.name == kChecked) checked = grads.size();
      const TensorView weight = tensor(dkfac::weight_numel(layer.spec));
      grads.push_back({id, weight, tensor(dkfac::bias_numel(layer.spec))});
    }
    kfac.prepare();
    const auto renew_gradients = [&] {
      for (Tensor& tensor : tensors)
        ops::cast(ctx_, gradient_.view().slice(0, 0, tensor.numel()), tensor);
    };
    const auto step = [&](bool inverses) {
      const kfac::StepReport report = kfac.step(grads, stream);
      if (!report.updated || report.inverses_refreshed != inverses)
        throw std::runtime_error("a step did not do what it should");
    };
    const auto record = [&] {
      renew_gradients();
      for (std::size_t l = 0; l < layers_.size(); ++l) {
        kfac.record_input(grads[l].layer, input(layers_[l]), stream);
        kfac.record_grad_output(grads[l].layer, output(layers_[l]), stream);
      }
    };
    record();
    step(true);
    double refresh_ms = 0;
    if (!tf32) {
      // Statistics and inverses are refreshed in each of these steps; recording is not timed.
      kfac.set_curvature({.statistics_interval = 1, .inverse_interval = 1});
      refresh_ms =
          median_ms(ctx_, {.repeats = arguments_.repeats, .before = record}, [&] { step(true); });
      kfac.set_curvature({.statistics_interval = 1000000, .inverse_interval = 1000000});
    }
    const double plain_ms = median_ms(
        ctx_, {.repeats = arguments_.repeats, .before = renew_gradients}, [&] { step(false); });
    check_finite(tensors);
    Tensor direction = Tensor::copy_of(ctx_, grads[checked].weight);
    if (tf32) {
      out << ", \"plain_step_tf32_ms\": " << plain_ms;
      return direction;
    }
    const BenchLayer& layer = layers_[checked];
    const double wrong = checks::direction(
        ctx_, layer, input(layer), output(layer), options.damping,
        gradient_.view().slice(0, 0, grads[checked].weight.numel()), grads[checked].weight);
    // f32 inverses of factors with condition numbers in the thousands.
    if (!(wrong < 1e-3)) throw std::runtime_error("a direction is wrong: " + std::to_string(wrong));
    out << ", \"step_with_inverses_ms\": " << refresh_ms << ", \"plain_step_ms\": " << plain_ms
        << ", \"inverse_ms\": " << refresh_ms - plain_ms << ", \"error_of_direction\": " << wrong;
    return direction;
  }

  void check_finite(const std::vector<Tensor>& tensors) {
    Tensor count = Tensor::zeros(ctx_, {1});
    for (const Tensor& tensor : tensors) ops::count_nonfinite(ctx_, tensor, count);
    Context host;
    Tensor here = Tensor::zeros(host, {1});
    ops::copy(ctx_, count, here);
    ctx_.stream().synchronize();
    if (here.data<float>()[0] != 0) throw std::runtime_error("a direction is not finite");
  }

  Arguments arguments_;
  Context ctx_;
  std::vector<BenchLayer> layers_;
  Tensor x_, dy_, gradient_;
};

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  return gpu_program("bench_gpu_kfac", argc, argv,
                     {{"--layers", &arguments.layers, {"resnet50", "tiny"}},
                      {"--batch", &arguments.batch},
                      {"--repeats", &arguments.repeats}},
                     [&](std::ostream& out) { Bench(arguments).run(out); });
}
