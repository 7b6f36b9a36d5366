// K-FAC of all ResNet-50 layers on a CUDA device, through the public interface: statistics (A, G),
// inverses and preconditioning, beside what the device can do (products, copies). Checks its
// results after timing and prints one JSON object. Usage: bench_gpu_kfac [--layers resnet50|tiny]
// [--batch N] [--repeats N] [--json FILE]. Exit code 77: there is no CUDA device.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/cuda/linalg16.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/version.h"
#include "dkfac/kfac/curvature.h"
#include "dkfac/kfac/preconditioner.h"

#include "resnet50_layers.h"

namespace {

using namespace dkfac;

struct Arguments {
  std::string layers = "resnet50", json;
  std::int64_t batch = 32;
  int repeats = 5;
};

Arguments parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    if (i + 1 >= argc) throw std::runtime_error(key + " needs a value");
    const std::string value = argv[i + 1];
    if (key == "--layers" && (value == "resnet50" || value == "tiny")) {
      out.layers = value;
    } else if (key == "--batch") {
      out.batch = std::stoll(value);
    } else if (key == "--repeats") {
      out.repeats = std::stoi(value);
    } else if (key == "--json") {
      out.json = value;
    } else {
      throw std::runtime_error("unknown argument " + key + " " + value +
                               "; known: --layers resnet50|tiny, --batch, --repeats, --json");
    }
  }
  return out;
}

/// Median milliseconds of work on the device, from idle to idle.
double median_ms(Context& ctx, int repeats, const std::function<void()>& work) {
  std::vector<double> all;
  for (int i = -1; i < repeats; ++i) {  // The first one warms up.
    ctx.stream().synchronize();
    const auto start = std::chrono::steady_clock::now();
    work();
    ctx.stream().synchronize();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (i >= 0) all.push_back(took.count());
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

/// Values as behind a ReLU (half of them zero), resp. symmetric ones.
Tensor random_values(Context& ctx, std::int64_t count, bool positive) {
  constexpr std::int64_t kPeriod = 1 << 20;  // Made once and repeated: only sizes matter here.
  Context host;
  Random random(positive ? 1 : 2);
  Tensor some = Tensor::empty(host, {std::min(count, kPeriod)}, DType::f32);
  for (std::int64_t i = 0; i < some.numel(); ++i) {
    const auto value = static_cast<float>(random.normal());
    some.data<float>()[i] = positive ? std::max(value, 0.0F) : value * 0.1F;
  }
  Tensor narrow = Tensor::empty(host, some.shape(), DType::f16);
  ops::cast(host, some, narrow);
  Tensor out = Tensor::empty(ctx, {count}, DType::f16);
  for (std::int64_t at = 0; at < count; at += some.numel()) {
    const std::int64_t length = std::min(some.numel(), count - at);
    ops::copy(ctx, narrow.view().slice(0, 0, length), out.view().slice(0, at, length));
  }
  ctx.stream().synchronize();
  return out;
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
  }

  void run(std::ostream& out) {
    out << "{\"what\": \"K-FAC of " << arguments_.layers << "\", \"version\": \"" << version()
        << "\", \"batch\": " << arguments_.batch << ", \"repeats\": " << arguments_.repeats;
    ceilings(out);
    statistics(out);
    steps(out);
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

  /// What the device reaches on one large product and on one large copy.
  void ceilings(std::ostream& out) {
    const std::int64_t n = arguments_.layers == "tiny" ? 256 : 8192;
    Tensor a = random_values(ctx_, n * n, false), c = Tensor::zeros(ctx_, {n, n});
    const ConstTensorView square = a.view().reshape({n, n});
    const double product = median_ms(ctx_, arguments_.repeats, [&] {
      cuda::gemm16(ctx_, ops::Trans::no, ops::Trans::yes, 1, square, square, 0, c);
    });
    Tensor to = Tensor::zeros(ctx_, {n, n});
    const double copy = median_ms(ctx_, arguments_.repeats, [&] { ops::copy(ctx_, c, to); });
    const double flops = 2 * std::pow(static_cast<double>(n), 3);
    out << ", \"gemm_f16_tflops\": " << flops / product * 1e-9
        << ", \"copy_gb_per_s\": " << 2 * static_cast<double>(c.bytes()) / copy * 1e-6;
  }

  void statistics(std::ostream& out) {
    Tensor square = Tensor::zeros(ctx_, {largest(), largest()});
    const auto of = [&](std::int64_t d) {
      return square.view().flat().slice(0, 0, d * d).reshape({d, d});
    };
    const auto n = static_cast<double>(arguments_.batch);
    const kfac::Operand operand{DType::f16, 1};
    double a_ms = 0, g_ms = 0, wrong = 0;
    std::ostringstream rows;
    for (const BenchLayer& layer : layers_) {
      const TensorView a = of(kfac::a_dim(layer.spec)), g = of(kfac::g_dim(layer.spec));
      const double ta = median_ms(ctx_, arguments_.repeats, [&] {
        kfac::compute_a(ctx_, layer.spec, input(layer), n, operand, {}, 0, a);
      });
      const double tg = median_ms(ctx_, arguments_.repeats, [&] {
        kfac::compute_g(ctx_, layer.spec, output(layer), n, 1, operand, {}, 0, g);
      });
      wrong = std::max(wrong, a_error(layer, a));
      rows << (rows.tellp() > 0 ? ", " : "") << "{\"layer\": \"" << layer.name
           << "\", \"a_dim\": " << a.dim(0) << ", \"g_dim\": " << g.dim(0) << ", \"a_ms\": " << ta
           << ", \"g_ms\": " << tg << "}";
      a_ms += ta;
      g_ms += tg;
    }
    // Sums of f16 products in f32 in another order: n eps of the magnitudes, far below this.
    if (!(wrong < 1e-3)) throw std::runtime_error("a factor A is wrong: " + std::to_string(wrong));
    out << ", \"a_ms\": " << a_ms << ", \"g_ms\": " << g_ms
        << ", \"statistics_ms\": " << a_ms + g_ms << ", \"largest_error_of_a\": " << wrong
        << ", \"layers\": [" << rows.str() << "]";
  }

  [[nodiscard]] std::int64_t largest() const {
    std::int64_t d = 0;
    for (const BenchLayer& layer : layers_)
      d = std::max({d, kfac::a_dim(layer.spec), kfac::g_dim(layer.spec)});
    return d;
  }

  /// A of the first samples: largest difference on its diagonal from sums of squares over patches
  /// on the host, relative.
  double a_error(const BenchLayer& layer, TensorView a) {
    Context host;
    const std::int64_t n = std::min<std::int64_t>(arguments_.batch, 8);
    const ConstTensorView image = input(layer).slice(0, 0, n);
    kfac::compute_a(ctx_, layer.spec, image, static_cast<double>(n), {DType::f16, 1}, {}, 0, a);
    Tensor narrow = Tensor::empty(host, image.shape(), DType::f16);
    ops::copy(ctx_, image, narrow);
    Tensor x = Tensor::empty(host, image.shape(), DType::f32);
    ctx_.stream().synchronize();
    ops::cast(host, narrow, x);
    float* values = x.data<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) values[i] *= values[i];
    const std::int64_t d = a.dim(0);
    Tensor diagonal = Tensor::empty(host, {d});
    const Strides along{a.stride(0) + 1, 0, 0, 0};
    ops::copy(ctx_, ConstTensorView(a.raw(), a.dtype(), {d}, along, a.device()), diagonal);
    ctx_.stream().synchronize();
    const std::vector<double> expected = mean_squares(host, layer, x);
    double error = 0, scale = 0;
    for (std::int64_t i = 0; i < d; ++i) {
      const double e = expected[static_cast<std::size_t>(i)];
      error = std::max(error, std::abs(e - static_cast<double>(diagonal.data<float>()[i])));
      scale = std::max(scale, e);
    }
    return error / scale;
  }

  /// Diagonal of A from squared values; in f64 over samples.
  static std::vector<double> mean_squares(Context& host, const BenchLayer& layer,
                                          const Tensor& squares) {
    const std::int64_t n = squares.shape()[0], d = kfac::a_dim(layer.spec);
    std::vector<double> sums(static_cast<std::size_t>(d), 1.0);  // A bias squares to one.
    if (const auto* conv = std::get_if<kfac::Conv2dSpec>(&layer.spec)) {
      Tensor patches = Tensor::empty(host, {n, d});
      ops::patch_sum(host, kfac::patch_spec(*conv, n, layer.in_hw, layer.in_hw), 1, squares,
                     patches);
      const double positions = static_cast<double>(n * layer.out_hw * layer.out_hw);
      mean_of_rows(patches.data<float>(), n, d, positions, sums);
    } else {
      mean_of_rows(squares.data<float>(), n, layer.in_c, static_cast<double>(n), sums);
    }
    return sums;
  }
  static void mean_of_rows(const float* rows, std::int64_t n, std::int64_t width, double count,
                           std::vector<double>& out) {
    for (std::int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(rows[i * width + c]);
      out[static_cast<std::size_t>(c)] = sum / count;
    }
  }

  /// Whole steps of the preconditioner: with all inverses, and with none.
  void steps(std::ostream& out) {
    const Stream stream = ctx_.stream();
    kfac::CurvatureOptions options;
    options.operand = DType::f16;
    options.damping = 1e-2;
    options.statistics_interval = options.inverse_interval = 1000000;
    kfac::Preconditioner kfac(comm::make_self(), options, Device::cuda());
    std::vector<kfac::LayerGrad> grads;
    std::vector<Tensor> held;
    for (const BenchLayer& layer : layers_) {
      const kfac::LayerId id = kfac.add_layer(layer.name, layer.spec);
      const auto tensor = [&](std::int64_t count) {
        if (count == 0) return TensorView{};
        held.push_back(Tensor::zeros(ctx_, {count}));
        ops::fill(ctx_, held.back(), 1e-3);
        return held.back().view();
      };
      const TensorView weight = tensor(kfac::weight_numel(layer.spec));
      grads.push_back({id, weight, tensor(kfac::bias_numel(layer.spec))});
    }
    kfac.prepare();
    double refresh_ms = 0;
    for (int i = 0; i <= arguments_.repeats; ++i) {
      // The same damping again: statistics and inverses are due in the step that follows.
      if (i > 0) kfac.set_curvature({options.damping, 1, 1});
      for (std::size_t l = 0; l < layers_.size(); ++l) {
        kfac.record_input(grads[l].layer, input(layers_[l]), stream);
        kfac.record_grad_output(grads[l].layer, output(layers_[l]), stream);
      }
      stream.synchronize();
      kfac::StepReport report;
      const auto start = std::chrono::steady_clock::now();
      report = kfac.step(grads, stream);
      stream.synchronize();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - start;
      if (!report.updated || !report.inverses_refreshed)
        throw std::runtime_error("a step that should renew all inverses did not");
      refresh_ms = i == 0 ? took.count() : std::min(refresh_ms, took.count());
    }
    kfac.set_curvature({options.damping, 1000000, 1000000});
    const double plain_ms =
        median_ms(ctx_, arguments_.repeats, [&] { (void)kfac.step(grads, stream); });
    check_finite(held);
    out << ", \"step_with_inverses_ms\": " << refresh_ms << ", \"plain_step_ms\": " << plain_ms
        << ", \"inverse_ms\": " << refresh_ms - plain_ms;
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
  Tensor x_, dy_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    if (available_devices().size() < 2) {
      std::printf("SKIPPED: there is no CUDA device\n");
      return 77;
    }
    std::ostringstream text;
    Bench(arguments).run(text);
    std::cout << text.str();
    if (!arguments.json.empty() && !(std::ofstream(arguments.json) << text.str()))
      throw std::runtime_error("cannot write " + arguments.json);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpu_kfac: %s\n", error.what());
    return 1;
  }
}
