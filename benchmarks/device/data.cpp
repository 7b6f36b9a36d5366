// Benchmark of the work on a batch before and after the network on a CUDA device: batches of a
// resident data set compared with a copy of as many bytes, streamed batches, mixing and erasing,
// losses. Checks the last batch bit by bit, and the losses, against the host. Prints one JSON
// object.
//
// Usage: bench_gpu_data [--size cifar10|tiny] [--type f16|bf16|f32] [--repeats N] [--json FILE]
// Exit code 77: there is no CUDA device.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/device_info.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/regularize.h"

#include "data/shared/device_data.h"
#include "program.h"

namespace {

using namespace dkfac;

struct Arguments {
  std::string size = "cifar10", type = "f16";
  int repeats = 7;
};

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments), tiny_(arguments.size == "tiny"), dtype_(type_of(arguments.type)) {
    const std::int64_t count = tiny_ ? 64 : 50000;
    sampler_ = {.count = count, .global_batch = tiny_ ? 16 : 512};
    data_ = data::synthetic_images(count, {32, 32, 3}, 10, 1);
  }

  void run(std::ostream& out) {
    out << "{\"what\": \"batches and losses of " << arguments_.size << "\", \"version\": \""
        << version() << "\", \"batch\": " << sampler_.global_batch << ", \"type\": \""
        << arguments_.type << "\", \"repeats\": " << arguments_.repeats;
    resident(out);
    streamed(out);
    regularization(out);
    for (const std::int64_t classes : {10, 1000}) loss(out, classes);
    out << "}\n";
  }

 private:
  double median_ms(int times, const std::function<void()>& work) {
    return ::median_ms(ctx_, {arguments_.repeats, times}, work);
  }
  [[nodiscard]] int times() const { return tiny_ ? 1 : 50; }

  [[nodiscard]] data::DeviceLoader loader(data::DataPlacement place) {
    return {ctx_,
            data_,
            data::normalization_of(data_),
            {.sampler = sampler_, .augment = kAugment, .dtype = dtype_, .place = place}};
  }

  /// Checks that the last batch of epoch 0 is bit-identical to the host's.
  void check(const data::DeviceBatch& got) {
    data::Loader host(data_, data::normalization_of(data_), sampler_, 0, 1, dtype_, 2, kAugment);
    host.start_epoch(0, data::batches_per_epoch(sampler_) - 1);
    data::Batch want;
    if (!host.next(want)) throw std::runtime_error("the host has no batch");
    Tensor images = Tensor::empty(host_, got.images.shape(), dtype_);
    ops::copy(ctx_, got.images, images);
    ctx_.stream().synchronize();
    if (images.bytes() != want.images.bytes() ||
        std::memcmp(images.view().raw(), want.images.raw(), images.bytes()) != 0)
      throw std::runtime_error("a batch is not that of the host");
  }

  void resident(std::ostream& out) {
    data::DeviceLoader batches = loader(data::DataPlacement::resident);
    data::DeviceBatch batch;
    const double all = median_ms(1, [&] {
      batches.start_epoch(ctx_, 0);
      while (batches.next(ctx_, batch)) continue;
    });
    check(batch);
    const double ms = all / static_cast<double>(batches.batches());
    // Reads 8-bit pixels and writes a batch; the copy moves as many bytes.
    const std::int64_t bytes =
        batch.images.numel() + static_cast<std::int64_t>(batch.images.bytes());
    Tensor from = Tensor::zeros(ctx_, Shape{bytes / 8}, DType::f32),
           to = Tensor::zeros(ctx_, Shape{bytes / 8}, DType::f32);
    const double copy = median_ms(times(), [&] { ops::copy(ctx_, from, to); });
    out << ", \"resident\": {\"ms\": " << ms
        << ", \"gb_per_s\": " << static_cast<double>(bytes) / ms * 1e-6 << ", \"copy_ms\": " << copy
        << ", \"of_copy\": " << copy / ms << "}";
  }

  void streamed(std::ostream& out) {
    data::DeviceLoader batches = loader(data::DataPlacement::streamed);
    data::DeviceBatch batch;
    const double all = median_ms(1, [&] {
      batches.start_epoch(ctx_, 0);
      while (batches.next(ctx_, batch)) continue;
    });
    check(batch);
    const double ms = all / static_cast<double>(batches.batches());
    out << ", \"streamed\": {\"ms\": " << ms
        << ", \"images_per_s\": " << static_cast<double>(sampler_.global_batch) / ms * 1e3 << "}";
  }

  void regularization(std::ostream& out) {
    data::DeviceLoader batches = loader(data::DataPlacement::resident);
    data::DeviceBatch batch;
    batches.start_epoch(ctx_, 0);
    if (!batches.next(ctx_, batch)) throw std::runtime_error("there is no batch");
    nn::Regularizer state;
    std::int64_t step = 0;
    const nn::RegularizeOptions options{.mixup = {.alpha = 0.4}, .erase = {.probability = 0.5}};
    const double ms = median_ms(times(), [&] {
      (void)nn::regularize(ctx_, options, {.step = step++}, batch.global_batch, batch.images,
                           batch.labels, 10, state);
    });
    out << ", \"mixup_and_erase_ms\": " << ms;
  }

  void loss(std::ostream& out, std::int64_t classes) {
    const std::int64_t n = tiny_ ? 16 : 512;
    Random random(3);
    Tensor wide = Tensor::empty(host_, {n, classes});
    fill_uniform(wide, -3, 3, random);
    Tensor logits = Tensor::empty(host_, wide.shape(), dtype_);
    ops::cast(host_, wide, logits);
    std::vector<std::int32_t> labels;
    for (std::int64_t i = 0; i < n; ++i)
      labels.push_back(static_cast<std::int32_t>(7 * i % classes));
    const Tensor there = Tensor::copy_of(ctx_, logits),
                 wanted = Tensor::copy_of(ctx_, view_of(labels.data(), Shape{n}));
    Tensor grad = Tensor::empty(ctx_, there.shape(), dtype_);
    Tensor drawn = Tensor::empty(ctx_, Shape{n}, DType::i32);
    Tensor sums = Tensor::zeros(ctx_, Shape{2}, DType::f64),
           once = Tensor::pinned(ctx_, {2}, DType::f64);
    nn::softmax_cross_entropy(ctx_, there, wanted.view(), 0.1, 1, grad, sums);
    ops::copy(ctx_, sums, once);
    ctx_.stream().synchronize();
    const nn::LossSum want = nn::softmax_cross_entropy(host_, logits, labels, 0.1, 1, {});
    // Both are in f64 and differ in the order of sums.
    if (!(std::abs(once.data<double>()[0] - want.loss) <= 1e-10 * want.loss) ||
        once.data<double>()[1] != static_cast<double>(want.correct))
      throw std::runtime_error("a loss is not that of the host");
    const double ms = median_ms(times(), [&] {
      nn::softmax_cross_entropy(ctx_, there, wanted.view(), 0.1, 1, grad, sums);
    });
    const double draw =
        median_ms(times(), [&] { nn::sample_labels(ctx_, there, SampleKey{}, drawn.view()); });
    out << ", \"loss_of_" << classes << "_classes\": {\"rows\": " << n << ", \"ms\": " << ms
        << ", \"drawn_labels_ms\": " << draw << "}";
  }

  static constexpr data::AugmentOptions kAugment{.pad = 4, .flip = true, .cutout = 8};

  Arguments arguments_;
  bool tiny_;
  DType dtype_;
  Context ctx_{Device::cuda()};
  Context host_{Device::cpu(), {.backend = Backend::reference}};
  data::SamplerOptions sampler_;
  data::Dataset data_;
};

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  return gpu_program("bench_gpu_data", argc, argv,
                     {{"--size", &arguments.size, {"cifar10", "tiny"}},
                      {"--type", &arguments.type, kTypeNames},
                      {"--repeats", &arguments.repeats}},
                     [&](std::ostream& out) { Bench(arguments).run(out); });
}
