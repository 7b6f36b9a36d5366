// Trains one network at a constant rate and prints its losses as one JSON object: a run of
// `first-hour` (benchmarks/peers/first_hour_cpp.py) by this library's layers and optimizers, with
// their defaults.
//
// usage: bench_first_hour lenet-bn|resnet20|transformer sgd|adamw|kfac|kfac-adamw RATE SEED STEPS
// TREE
//
// TREE is the folder of the sources: images are those of data/fashion-mnist-small, text that of
// docs/.

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/random.h"
#include "dkfac/data/dataset.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/layers.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/norm_layers.h"
#include "dkfac/nn/token_layers.h"

namespace {

using namespace dkfac;
namespace fs = std::filesystem;

constexpr std::int64_t kHeld = 500, kPoints = 50;

struct Samples {
  std::vector<float> images;
  std::vector<std::int32_t> tokens;  // In place of images.
  std::vector<std::int32_t> labels;
  [[nodiscard]] ConstTensorView inputs(const Shape& shape) const {
    return tokens.empty() ? ConstTensorView(view_of(images, shape))
                          : ConstTensorView(view_of(tokens, shape));
  }
};

// A network and where its samples come from.
class Task {
 public:
  virtual ~Task() = default;
  [[nodiscard]] virtual std::unique_ptr<nn::Model> model(Context& ctx,
                                                         std::uint64_t seed) const = 0;
  [[nodiscard]] virtual Samples sample(Random& random, std::int64_t count) const = 0;
  [[nodiscard]] virtual Samples held() const = 0;
  [[nodiscard]] virtual Shape shape(std::int64_t count) const = 0;
  [[nodiscard]] virtual std::int64_t batch() const = 0;
};

class Images final : public Task {
 public:
  Images(std::string network, const fs::path& folder, std::int64_t batch)
      : network_(std::move(network)),
        batch_(batch),
        train_(read(folder, "train")),
        test_(read(folder, "t10k")) {}

  [[nodiscard]] std::unique_ptr<nn::Model> model(Context& ctx, std::uint64_t seed) const override {
    return nn::make_model(ctx, {.name = network_, .seed = seed});
  }
  [[nodiscard]] Samples sample(Random& random, std::int64_t count) const override {
    Samples out;
    for (std::int64_t i = 0; i < count; ++i)
      add(train_, static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(train_.count))),
          out);
    return out;
  }
  [[nodiscard]] Samples held() const override {
    Samples out;
    for (std::int64_t i = 0; i < kHeld; ++i) add(test_, i, out);
    return out;
  }
  [[nodiscard]] Shape shape(std::int64_t count) const override { return {count, 28, 28, 1}; }
  [[nodiscard]] std::int64_t batch() const override { return batch_; }

 private:
  static data::Dataset read(const fs::path& folder, const std::string& part) {
    return data::read_idx(folder / (part + "-images-idx3-ubyte.gz"),
                          folder / (part + "-labels-idx1-ubyte.gz"), 10, part);
  }
  static void add(const data::Dataset& from, std::int64_t image, Samples& to) {
    const auto* const first = from.pixels.data() + image * from.image_size();
    std::transform(first, first + from.image_size(), std::back_inserter(to.images),
                   [](std::uint8_t pixel) { return static_cast<float>(pixel) / 255; });
    to.labels.push_back(from.labels[static_cast<std::size_t>(image)]);
  }

  std::string network_;
  std::int64_t batch_;
  data::Dataset train_, test_;
};

// The character after 32 others, of which the last tenth of the text is held.
class Characters final : public Task {
 public:
  explicit Characters(const fs::path& folder) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".md") files.push_back(entry.path());
    std::ranges::sort(files);
    for (const fs::path& file : files) {
      std::ifstream in(file, std::ios::binary);
      for (std::istreambuf_iterator<char> c(in), end; c != end; ++c)
        text_.push_back(*c >= 0 ? *c : 0);  // ASCII, and one symbol for all others.
    }
    if (std::ssize(text_) < 100 * kLength)
      throw std::runtime_error(folder.string() + " has no text to train on");
  }
  [[nodiscard]] std::unique_ptr<nn::Model> model(Context& ctx, std::uint64_t seed) const override {
    using namespace nn;
    auto net = std::make_unique<Sequential>();
    net->add<Embedding>("embed", kSymbols, kWidth).add<SinusoidalPositions>("positions");
    for (const char* name : {"1", "2"}) {
      auto attend = std::make_unique<Sequential>(), feed = std::make_unique<Sequential>();
      attend->add<LayerNorm>("norm", kWidth)
          .add<Linear>("qkv", kWidth, 3 * kWidth)
          .add<SelfAttention>("attention", kWidth, 4)
          .add<Linear>("out", kWidth, kWidth);
      feed->add<LayerNorm>("norm", kWidth)
          .add<Linear>("in", kWidth, 4 * kWidth)
          .add<Celu>("celu")
          .add<Linear>("out", 4 * kWidth, kWidth);
      net->add<Residual>(std::string("attend") + name, std::move(attend))
          .add<Residual>(std::string("feed") + name, std::move(feed));
    }
    net->add<LayerNorm>("norm", kWidth)
        .add<GlobalPool>("mean", PoolKind::average)
        .add<Linear>("head", kWidth, kSymbols);
    return std::make_unique<Model>(ctx, "transformer", std::move(net), Shape{kLength}, DType::f32,
                                   seed);
  }
  [[nodiscard]] Samples sample(Random& random, std::int64_t count) const override {
    return draw(random, count, 0, std::ssize(text_) * 9 / 10);
  }
  [[nodiscard]] Samples held() const override {
    Random random(1, 1);
    return draw(random, kHeld, std::ssize(text_) * 9 / 10, std::ssize(text_));
  }
  [[nodiscard]] Shape shape(std::int64_t count) const override { return {count, kLength}; }
  [[nodiscard]] std::int64_t batch() const override { return 128; }

 private:
  static constexpr std::int64_t kLength = 32, kWidth = 64, kSymbols = 128;
  [[nodiscard]] Samples draw(Random& random, std::int64_t count, std::int64_t begin,
                             std::int64_t end) const {
    Samples out;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto range = static_cast<std::uint64_t>(end - begin - kLength);
      const auto* const at = text_.data() + begin + static_cast<std::int64_t>(random.below(range));
      out.tokens.insert(out.tokens.end(), at, at + kLength);
      out.labels.push_back(at[kLength]);
    }
    return out;
  }
  std::vector<std::int32_t> text_;
};

std::unique_ptr<Task> make_task(const std::string& name, const fs::path& tree) {
  const fs::path images = tree / "data" / "fashion-mnist-small";
  if (name == "lenet-bn") return std::make_unique<Images>(name, images, 64);
  if (name == "resnet20") return std::make_unique<Images>(name, images, 32);
  if (name == "transformer") return std::make_unique<Characters>(tree / "docs");
  throw std::runtime_error("there is no network '" + name + "'");
}

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name) {
  auto comm = comm::make_self();
  if (name == "sgd") return optim::make_sgd(comm, {});
  if (name == "adamw") return optim::make_adamw(comm, {});
  if (name == "kfac") return optim::make_kfac(comm, {});
  if (name == "kfac-adamw")
    return optim::make_kfac(comm, {.update = optim::DirectionUpdate::adamw});
  throw std::runtime_error("there is no optimizer '" + name + "'");
}

double processor_seconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

double mean_of_last(const std::vector<double>& losses, std::int64_t window) {
  const auto count = std::min<std::int64_t>(window, std::ssize(losses));
  double sum = 0;
  for (auto i = losses.end() - count; i != losses.end(); ++i) sum += *i;
  return sum / static_cast<double>(count);
}

std::string json(double x) { return std::isfinite(x) ? std::to_string(x) : "Infinity"; }

void train(const Task& task, optim::Optimizer& optimizer, double rate, std::uint64_t seed,
           std::int64_t steps) {
  Context ctx;
  const auto model = task.model(ctx, seed);
  nn::OptimizerAttachment attachment(*model, optimizer, {.max_samples = task.batch()});
  optimizer.prepare();
  Random random(seed, 2);
  std::vector<double> losses;
  double seconds = 0;
  const std::int64_t batch = task.batch(), window = std::max<std::int64_t>(1, steps / 10);
  const std::int64_t every = std::max<std::int64_t>(1, steps / kPoints);
  std::cout << "{\"points\": [";
  for (std::int64_t step = 1; step <= steps; ++step) {
    const Samples samples = task.sample(random, batch);
    const double started = processor_seconds();
    attachment.set_scale({.global_batch = batch});
    const ConstTensorView logits =
        model->forward(ctx, samples.inputs(task.shape(batch)), nn::Mode::train);
    Tensor grad = Tensor::empty(ctx, logits.shape());
    const auto of_mean = 1 / static_cast<double>(batch);
    losses.push_back(of_mean *
                     nn::softmax_cross_entropy(ctx, logits, samples.labels, 0, of_mean, grad).loss);
    model->backward(ctx, grad);
    (void)optimizer.step({.lr = rate});
    seconds += processor_seconds() - started;
    const bool ends = step == steps || !std::isfinite(losses.back());
    if (ends || step % every == 0)
      std::cout << (losses.size() > static_cast<std::size_t>(every) ? ", [" : "[") << step << ", "
                << json(mean_of_last(losses, window)) << ", " << json(seconds) << ']';
    if (ends) break;
  }
  const Samples held = task.held();
  const ConstTensorView logits =
      model->forward(ctx, held.inputs(task.shape(kHeld)), nn::Mode::eval);
  const double loss = nn::softmax_cross_entropy(ctx, logits, held.labels, 0, 0, {}).loss;
  std::cout << "], \"first\": " << json(losses.front())
            << ", \"held\": " << json(loss / static_cast<double>(kHeld)) << "}\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 7) {
      std::cerr << "usage: bench_first_hour NETWORK OPTIMIZER RATE SEED STEPS TREE\n";
      return 2;
    }
    const auto task = make_task(argv[1], argv[6]);
    const auto optimizer = make_optimizer(argv[2]);
    train(*task, *optimizer, std::stod(argv[3]), std::stoull(argv[4]), std::stoll(argv[5]));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "bench_first_hour: " << error.what() << '\n';
    return 1;
  }
}
