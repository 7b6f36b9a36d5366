// Benchmark of forward, backward-data and backward-weights of convolutions: milliseconds, GFLOP/s
// and reorders, checked against the reference backend after timing. One JSON object per line.
//
// usage: bench_conv_step [threads] [f32|bf16|f16]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/threads.h"
#include "dkfac/nn/gradient_check.h"
#include "dkfac/nn/layers.h"

namespace {

using namespace dkfac;

struct Case {
  const char* name;
  std::int64_t n, size, in, out;
  nn::ConvOptions options;
};

constexpr auto square = nn::ConvOptions::square;

const Case kCases[] = {
    {"lenet conv1 5x5 1-6 @28", 128, 28, 1, 6, square(5, {.pad = 2})},
    {"lenet conv2 5x5 6-16 @14", 128, 14, 6, 16, square(5, {})},
    {"r20 3x3 3-16 @32", 128, 32, 3, 16, square(3, {.pad = 1, .bias = false})},
    {"r20 3x3 16-16 @32", 128, 32, 16, 16, square(3, {.pad = 1, .bias = false})},
    {"r20 3x3s2 16-32 @32", 128, 32, 16, 32, square(3, {.stride = 2, .pad = 1, .bias = false})},
    {"r20 3x3 32-32 @16", 128, 16, 32, 32, square(3, {.pad = 1, .bias = false})},
    {"r20 3x3 64-64 @8", 128, 8, 64, 64, square(3, {.pad = 1, .bias = false})},
    {"r50 7x7s2 3-64 @224", 32, 224, 3, 64, square(7, {.stride = 2, .pad = 3, .bias = false})},
    {"r50 1x1 64-256 @56", 32, 56, 64, 256, square(1, {.bias = false})},
    {"r50 1x1 256-64 @56", 32, 56, 256, 64, square(1, {.bias = false})},
    {"r50 3x3 64-64 @56", 32, 56, 64, 64, square(3, {.pad = 1, .bias = false})},
    {"r50 1x1s2 256-512 @56", 32, 56, 256, 512, square(1, {.stride = 2, .bias = false})},
    {"r50 1x1 512-128 @28", 32, 28, 512, 128, square(1, {.bias = false})},
    {"r50 3x3 256-256 @14", 32, 14, 256, 256, square(3, {.pad = 1, .bias = false})},
    {"r50 1x1 512-2048 @7", 32, 7, 512, 2048, square(1, {.bias = false})},
    {"r50 3x3 512-512 @2", 32, 2, 512, 512, square(3, {.pad = 1, .bias = false})},
};

constexpr int kWarmUps = 3, kRepetitions = 15;

double seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

Tensor random_tensor(Context& ctx, Shape shape, DType dtype, std::uint64_t seed) {
  Tensor x = Tensor::empty(ctx, shape), out = Tensor::empty(ctx, shape, dtype);
  Random random(seed);
  fill_uniform(x, -1, 1, random);
  ops::cast(ctx, x, out);
  return out;
}

DType parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (name_of(dtype) == name) return dtype;
  }
  throw InvalidArgument("[bench_conv_step] '" + name + "' is no dtype; use f32, bf16 or f16");
}

/// Returns the unit roundoff of results that are rounded to `dtype`; 0 for f32.
double rounding_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
}

/// One layer with its memory and the results of its three passes.
struct Step {
  Step(Context& context, const Case& c)
      : ctx(context),
        conv(c.in, c.out, c.options),
        memory(nn::bind_standalone(ctx, conv, DType::f32, 1)) {}
  void forward(const Tensor& x) { y = conv.forward(ctx, x, nn::Mode::train); }
  void backward(const Tensor& dy) { dx = conv.backward(ctx, dy, nn::InputGrad::needed); }
  Context& ctx;
  nn::Conv2d conv;
  Tensor memory;
  ConstTensorView y, dx;
};

/// Returns max |a - b| / max |b|.
double relative_difference(Context& ctx, ConstTensorView a, ConstTensorView b) {
  Tensor wide_a = Tensor::empty(ctx, a.shape()), wide_b = Tensor::empty(ctx, b.shape());
  ops::cast(ctx, a, wide_a);
  ops::cast(ctx, b, wide_b);
  double difference = 0, scale = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const auto x = static_cast<double>(wide_a.data<float>()[i]);
    const auto y = static_cast<double>(wide_b.data<float>()[i]);
    if (!std::isfinite(x)) return x;
    difference = std::max(difference, std::abs(x - y));
    scale = std::max(scale, std::abs(y));
  }
  return difference / scale;
}

/// Returns the largest error of the three results and the bias gradient against the reference
/// backend.
double check(Step& fast, const Case& c, const Tensor& x, const Tensor& dy) {
  Context reference(Device::cpu(), {.backend = Backend::reference});
  Step expected(reference, c);
  expected.forward(x);
  expected.backward(dy);
  double worst = std::max(relative_difference(reference, fast.y, expected.y),
                          relative_difference(reference, fast.dx, expected.dx));
  for (std::size_t i = 0; i < fast.conv.parameters().size(); ++i) {
    worst = std::max(worst, relative_difference(reference, fast.conv.parameters()[i].grad,
                                                expected.conv.parameters()[i].grad));
  }
  return worst;
}

bool run(const Case& c, DType dtype) {
  Context ctx;
  Step step(ctx, c);
  const Tensor x = random_tensor(ctx, Shape{c.n, c.size, c.size, c.in}, dtype, 1);
  const Shape out = step.conv.output_shape(x.shape());
  const Tensor dy = random_tensor(ctx, out, dtype, 2);
  std::vector<double> forward, backward;
  nn::ReorderCount before;
  for (int i = 0; i < kWarmUps + kRepetitions; ++i) {
    if (i == kWarmUps) before = step.conv.reorders();
    const double start = seconds();
    step.forward(x);
    const double middle = seconds();
    step.backward(dy);
    if (i < kWarmUps) continue;
    forward.push_back(middle - start);
    backward.push_back(seconds() - middle);
  }
  const nn::ReorderCount after = step.conv.reorders();
  const double error = check(step, c, x, dy);
  // Sums of up to n*oh*ow products in the weight gradient: 8 times their square root.
  // Two roundings of 16-bit results differ by two halves.
  const double tolerance = 8 * std::sqrt(static_cast<double>(out[0] * out[1] * out[2])) * 1.2e-7 +
                           2 * rounding_of(dtype);
  const auto flops = 2.0 * static_cast<double>(out.numel() * c.in * c.options.window.taps());
  const double total = median(forward) + median(backward);
  const double best = *std::min_element(forward.begin(), forward.end()) +
                      *std::min_element(backward.begin(), backward.end());
  std::cout << "{\"case\": \"" << c.name << "\", \"batch\": " << c.n << ", \"dtype\": \"" << dtype
            << "\", \"threads\": " << threads() << ", \"forward_ms\": " << 1e3 * median(forward)
            << ", \"backward_ms\": " << 1e3 * median(backward)
            << ", \"gflops_per_s\": " << 3e-9 * flops / total
            << ", \"best_gflops_per_s\": " << 3e-9 * flops / best
            << ", \"reorders_per_step\": " << (after.reorders - before.reorders) / kRepetitions
            << ", \"reorder_bytes_per_step\": " << (after.bytes - before.bytes) / kRepetitions
            << ", \"error\": " << error << ", \"tolerance\": " << tolerance
            << ", \"correct\": " << (error <= tolerance ? "true" : "false") << "}" << std::endl;
  return error <= tolerance;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 1) dkfac::set_threads(std::max(1, std::atoi(argv[1])));
    const DType dtype = parse_dtype(argc > 2 ? argv[2] : "f32");
    bool correct = true;
    for (const Case& c : kCases) correct = run(c, dtype) && correct;
    return correct ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "bench_conv_step: " << e.what() << '\n';
    return 1;
  }
}
