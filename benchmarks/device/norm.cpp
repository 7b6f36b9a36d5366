// Benchmark of batch normalisation and pooling on a CUDA device: the speed of each pass over the
// activations of ResNet-50, compared with a copy of as many bytes of the same shape. Checks one
// channel of each result against the definition in double, and pooling against the host. Prints one
// JSON object.
//
// Usage: bench_gpu_norm [--layers resnet50|tiny] [--batch N] [--type f16|bf16|f32] [--repeats N]
//        [--json FILE]. Exit code 77: there is no CUDA device.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/device_info.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/gradient_check.h"
#include "dkfac/nn/layers.h"

#include "nn/shared/fusion.h"
#include "program.h"
#include "resnet50_layers.h"

namespace {

using namespace dkfac;

struct Arguments {
  std::string layers = "resnet50", type = "f16";
  int batch = 256, repeats = 7;
};

/// Convolution outputs of the same shape.
struct Activations {
  std::int64_t hw, c;
  int count;  ///< Number in the network.
};

std::vector<Activations> activations(const std::vector<BenchLayer>& layers) {
  std::vector<Activations> out;
  for (const BenchLayer& layer : layers) {
    if (layer.name == "fc") continue;
    const auto same = std::find_if(out.begin(), out.end(), [&](const Activations& a) {
      return a.hw == layer.out_hw && a.c == layer.out_c;
    });
    if (same == out.end()) {
      out.push_back({layer.out_hw, layer.out_c, 1});
    } else {
      ++same->count;
    }
  }
  return out;
}

/// One pass: milliseconds, and the bytes of activations that it must read and write.
struct Pass {
  std::string name;
  double ms, bytes;
  [[nodiscard]] double gb_per_s() const { return bytes / ms * 1e-6; }
};

/// Formats `passes` as members of a JSON object; the first one is the copy.
std::string members(const std::vector<Pass>& passes) {
  std::ostringstream out;
  for (const Pass& pass : passes) {
    out << ", \"" << pass.name << "\": {\"ms\": " << pass.ms
        << ", \"gb_per_s\": " << pass.gb_per_s()
        << ", \"of_copy\": " << pass.gb_per_s() / passes.front().gb_per_s() << "}";
  }
  return out.str();
}

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments), dtype_(type_of(arguments.type)), ctx_(Device::cuda()) {
    all_ = activations(arguments.layers == "tiny" ? tiny_layers() : resnet50_layers(224));
    std::int64_t largest = 0;
    for (const Activations& a : all_) largest = std::max(largest, shape(a).numel());
    x_ = random_values(largest, 1, 3);
    dy_ = random_values(largest, 2, 0);
    addend_ = random_values(largest, 3, 0);
    copied_ = Tensor::empty(ctx_, {largest}, dtype_);
  }

  void run(std::ostream& out) {
    out << "{\"what\": \"batch normalisation and pooling of " << arguments_.layers
        << "\", \"version\": \"" << version() << "\", \"batch\": " << arguments_.batch
        << ", \"type\": \"" << arguments_.type << "\", \"repeats\": " << arguments_.repeats
        << ", \"norms\": [";
    for (const Activations& a : all_) {
      out << (&a == &all_.front() ? "" : ", ") << "{\"hw\": " << a.hw << ", \"c\": " << a.c
          << ", \"count\": " << a.count << members(norm(a)) << "}";
    }
    // The output has a quarter of the input's elements, each with a position in 8 bits.
    const double places = 0.25 / static_cast<double>(size_of(dtype_));
    out << "], \"training_ms\": " << training_ms_ << ", \"copy_of_as_many_bytes_ms\": " << copy_ms_
        << ", \"error_of_a_channel\": " << error_ << ", \"pools\": [{\"kind\": \"max 3/2 p1\""
        << members(pool(all_.front(), 1.25 + places)) << "}, {\"kind\": \"global average\""
        << members(pool(all_.back(), 1)) << "}]}\n";
  }

 private:
  [[nodiscard]] Shape shape(const Activations& a) const {
    return {arguments_.batch, a.hw, a.hw, a.c};
  }
  [[nodiscard]] static ConstTensorView part(const Tensor& of, const Shape& shape) {
    return of.view().slice(0, 0, shape.numel()).reshape(shape);
  }

  /// Draws normally distributed values around `center`.
  Tensor random_values(std::int64_t count, std::uint64_t seed, double center) {
    Random random(seed);
    return repeated_values(ctx_, count, dtype_, [&] { return center + random.normal(); });
  }

  /// Returns the median milliseconds of one `work`, with enough consecutive calls to hide the
  /// launch.
  double median_ms(double bytes, const std::function<void()>& work) {
    const int each = static_cast<int>(std::clamp(4e9 / bytes, 1.0, 100.0));
    return ::median_ms(ctx_, {arguments_.repeats, arguments_.layers == "tiny" ? 1 : each}, work);
  }
  Pass copy(const Shape& of) {
    const ConstTensorView from = part(x_, of);
    const TensorView to = copied_.view().slice(0, 0, of.numel()).reshape(of);
    const double bytes = 2 * static_cast<double>(from.bytes());
    return {"copy", median_ms(bytes, [&] { ops::copy(ctx_, from, to); }), bytes};
  }

  /// Times the passes of the layer; one that cannot be timed alone is a difference of two.
  std::vector<Pass> norm(const Activations& a) {
    const Shape s = shape(a);
    const ConstTensorView x = part(x_, s), dy = part(dy_, s), addend = part(addend_, s);
    const nn::Activation relu{nn::ActivationKind::relu};
    nn::BatchNorm2d plain(a.c, {.momentum = 1, .activation = relu}), sum(a.c);
    plain.set_name("plain");
    sum.set_name("sum");
    const Tensor memory = nn::bind_standalone(ctx_, plain, DType::f32, 1),
                 sum_memory = nn::bind_standalone(ctx_, sum, DType::f32, 1);
    const auto unit = static_cast<double>(x.bytes());
    const auto time = [&](double units, const std::function<void()>& work) {
      return median_ms(units * unit, work);
    };
    const Pass as_copy = copy(s);
    const double eval = time(2, [&] { plain.forward(ctx_, x, nn::Mode::eval); });
    const double train = time(3, [&] { plain.forward(ctx_, x, nn::Mode::train); });
    const double sums = time(2, [&] { plain.backward(ctx_, dy, nn::InputGrad::skipped); });
    const double backward = time(5, [&] { plain.backward(ctx_, dy, nn::InputGrad::needed); });
    check(plain, x, dy);
    const double with_addend = time(4, [&] {
      nn::add_next(sum, addend, relu);
      sum.forward(ctx_, x, nn::Mode::train);
    });
    const double masked = time(7, [&] { sum.backward(ctx_, dy, nn::InputGrad::needed); });
    training_ms_ += a.count * (train + backward);
    copy_ms_ += a.count * as_copy.ms * 4;
    return {as_copy,
            {"normalize", eval, 2 * unit},
            {"moments", train - eval, unit},
            {"gradient_sums", sums, 2 * unit},
            {"normalize_backward", backward - sums, 3 * unit},
            {"forward", train, 3 * unit},
            {"backward", backward, 5 * unit},
            {"forward_with_addend", with_addend, 4 * unit},
            {"backward_with_addend", masked, 7 * unit}};
  }

  std::vector<double> column(ConstTensorView x, std::int64_t c) {
    const std::int64_t channels = x.dim(x.ndim() - 1), rows = x.numel() / channels;
    Tensor here = Tensor::empty(host_, {rows, 1}, x.dtype());
    ops::copy(ctx_, x.reshape({rows, channels}).slice(1, c, 1), here);
    ctx_.stream().synchronize();
    std::vector<double> out(static_cast<std::size_t>(rows));
    ops::cast(host_, here, view_of(out.data(), {rows, 1}));
    return out;
  }

  /// Checks one channel of both passes in training against the definition in double.
  void check(nn::BatchNorm2d& norm, ConstTensorView x_view, ConstTensorView dy_view) {
    const std::int64_t c = norm.channels() / 2;
    const auto y = column(norm.forward(ctx_, x_view, nn::Mode::train), c);
    const auto dx = column(norm.backward(ctx_, dy_view, nn::InputGrad::needed), c);
    const auto x = column(x_view, c), dy = column(dy_view, c);
    const auto n = static_cast<double>(x.size());
    double mean = 0, var = 0, sum_g = 0, sum_gx = 0;
    for (const double v : x) mean += v / n;
    for (const double v : x) var += (v - mean) * (v - mean) / n;
    const double inverse = 1 / std::sqrt(var + norm.options().epsilon);
    const auto xhat = [&](std::size_t i) { return (x[i] - mean) * inverse; };
    // Values this close to the kink of the ReLU may fall on either side.
    const auto near_edge = [&](std::size_t i) { return std::abs(xhat(i)) < 1e-4; };
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double g = xhat(i) > 0 ? dy[i] : 0;
      sum_g += g;
      sum_gx += g * xhat(i);
    }
    double wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      wrong = std::max(wrong, std::abs(y[i] - std::max(xhat(i), 0.0)));
      if (near_edge(i)) continue;
      const double g = xhat(i) > 0 ? dy[i] : 0;
      wrong = std::max(wrong, std::abs(dx[i] - inverse * (g - sum_g / n - xhat(i) * sum_gx / n)));
    }
    const double running = column(norm.buffers()[0].value.reshape({1, norm.channels()}), c)[0];
    wrong = std::max(wrong, std::abs(running - mean));
    error_ = std::max(error_, wrong);
    // Values of at most about 6, rounded once to 8 bits of bf16, 11 of f16, 24 of f32; f32 sums.
    const double bound = dtype_ == DType::bf16 ? 0x1p-5 : dtype_ == DType::f16 ? 0x1p-8 : 1e-4;
    if (!(wrong < bound))
      throw std::runtime_error("a normalisation is wrong: " + std::to_string(wrong));
  }

  /// Times max pooling of the first activations, or average pooling of the last. `units`: tensors
  /// of x's size that each direction moves.
  std::vector<Pass> pool(const Activations& a, double units) {
    const bool windows = &a == &all_.front();
    const auto make = [&]() -> std::unique_ptr<nn::Layer> {
      if (windows) return std::make_unique<nn::Pool2d>(nn::PoolKind::max, 3, 2, 1);
      return std::make_unique<nn::GlobalPool>(nn::PoolKind::average);
    };
    const auto there = make(), here = make();
    there->set_name("pool");
    const ConstTensorView x = part(x_, shape(a));
    const Shape out = there->output_shape(x.shape());
    const ConstTensorView dy = part(dy_, out);
    const double bytes = units * static_cast<double>(x.bytes());
    ConstTensorView y, dx;
    const double forward = median_ms(bytes, [&] { y = there->forward(ctx_, x, nn::Mode::train); });
    const double backward =
        median_ms(bytes, [&] { dx = there->backward(ctx_, dy, nn::InputGrad::needed); });
    // The first image on the host.
    const auto first = [&](ConstTensorView v) {
      Tensor image = Tensor::empty(host_, v.slice(0, 0, 1).shape(), dtype_);
      ops::copy(ctx_, v.slice(0, 0, 1), image);
      ctx_.stream().synchronize();
      return image;
    };
    const Tensor x_here = first(x), dy_here = first(dy);
    compare(first(y), here->forward(host_, x_here, nn::Mode::train));
    compare(first(dx), here->backward(host_, dy_here, nn::InputGrad::needed));
    return {copy(x.shape()), {"forward", forward, bytes}, {"backward", backward, bytes}};
  }
  void compare(ConstTensorView actual, ConstTensorView expected) {
    std::vector<double> a(static_cast<std::size_t>(actual.numel())), e(a.size());
    ops::cast(host_, actual, view_of(a.data(), actual.shape()));
    ops::cast(host_, expected, view_of(e.data(), expected.shape()));
    // At most four windows of 16-bit gradients of about 5, which the host rounds one by one.
    const double bound = dtype_ == DType::bf16 ? 0.25 : dtype_ == DType::f16 ? 0.03 : 1e-5;
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!(std::abs(a[i] - e[i]) <= bound)) throw std::runtime_error("a pool is wrong");
  }

  Arguments arguments_;
  DType dtype_;
  Context ctx_;
  Context host_{Device::cpu(), {.backend = Backend::reference}};
  std::vector<Activations> all_;
  Tensor x_, dy_, addend_, copied_;
  double training_ms_ = 0, copy_ms_ = 0, error_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  return gpu_program("bench_gpu_norm", argc, argv,
                     {{"--layers", &arguments.layers, {"resnet50", "tiny"}},
                      {"--batch", &arguments.batch, {}, 2},
                      {"--type", &arguments.type, kTypeNames},
                      {"--repeats", &arguments.repeats}},
                     [&](std::ostream& out) { Bench(arguments).run(out); });
}
