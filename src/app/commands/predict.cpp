#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/data/photo_data.h"

#include "app/checkpoint/manifest.h"
#include "app/checkpoint/mean_image.h"
#include "app/checkpoint/model_facts.h"
#include "app/commands/eval_checkpoint.h"
#include "app/run/job.h"
#include "app/shared/commands.h"
#include "app/training/run_state.h"
#include "app/training/views.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTop = 5;

/// Probabilities of one image by class.
using Probabilities = std::vector<double>;

Probabilities softmax(const double* logits, std::int64_t classes) {
  const double largest = *std::max_element(logits, logits + classes);
  Probabilities out(logits, logits + classes);
  for (double& x : out) x = std::exp(x - largest);
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& x : out) x /= sum;
  return out;
}

/// Returns the indices of the largest values, of equal ones the smaller index first.
std::vector<std::size_t> top_of(const Probabilities& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto count = std::min<std::ptrdiff_t>(kTop, std::ssize(order));
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](std::size_t a, std::size_t b) {
                      return values[a] != values[b] ? values[a] > values[b] : a < b;
                    });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

/// The images as a data set, each cut as the run cuts its test images.
data::Dataset dataset_of(const std::vector<fs::path>& images, const Config& config,
                         const ModelFacts& facts) {
  data::PhotoSet set;
  set.classes = {"unknown"};
  for (const fs::path& image : images) {
    if (!fs::is_regular_file(image))
      throw MissingInput(fmt::format("[predict] there is no file '{}'", image.string()));
    set.files.push_back(image.string());
    set.bytes.push_back(static_cast<std::int64_t>(fs::file_size(image)));
    set.labels.push_back(0);
  }
  const bool photos = config.data.name == "image-folder" || config.data.name == "synthetic-photos";
  const data::DataSource source = data_source(config);
  data::PhotoOptions options = source.photos;
  options.crop = photos ? source.photo_test_crop : data::PhotoCrop::centre;
  options.bad = data::BadPhoto::stop;
  options.rectangular = false;
  options.size = !photos                      ? facts.shape.height
                 : source.photo_test_size > 0 ? source.photo_test_size
                                              : config.data.image_size;
  options.resized = photos ? source.photo_test_resized : facts.shape.height;
  return data::photo_dataset("images", data::folder_source(std::move(set)), options,
                             facts.normalization);
}

/// Logits of the images, on the host as f64, over the views with which the run evaluates.
std::vector<double> logits_of(Context& ctx, nn::Model& model, const Config& config,
                              const data::Dataset& images) {
  const data::DeviceDataOptions options{
      .sampler =
          test_order(std::min<std::int64_t>(config.run.eval_batch, images.count), images.count),
      .dtype = master_type(config)};
  data::DeviceLoader loader(ctx, images, data::normalization_of(images), options);
  std::vector<double> out;
  MeanLogits mean(test_views(config));
  data::DeviceBatch batch;
  loader.start_epoch(ctx, 0);
  while (loader.next(ctx, batch)) {
    const ConstTensorView logits = mean(ctx, model, batch.images);
    Tensor wide = Tensor::empty(ctx, logits.shape(), DType::f64);
    ops::cast(ctx, logits, wide);
    Tensor host = Tensor::pinned(ctx, logits.shape(), DType::f64);
    ops::copy(ctx, wide, host);
    ctx.stream().synchronize();
    out.insert(out.end(), host.data<double>(), host.data<double>() + host.numel());
  }
  return out;
}

void print(const PredictCommand& command, const ModelFacts& facts,
           const std::vector<Probabilities>& found, std::ostream& out) {
  auto json = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string image = command.images[i].string();
    auto top = nlohmann::ordered_json::array();
    if (!command.json) out << printable(image, 1000) << '\n';
    for (const std::size_t c : top_of(found[i])) {
      const std::string name = c < facts.classes.size() ? facts.classes[c] : std::to_string(c);
      top.push_back({{"class", name}, {"index", c}, {"probability", found[i][c]}});
      if (!command.json)
        out << fmt::format("  {:6.2f} %  {}\n", 100 * found[i][c], printable(name, 1000));
    }
    json.push_back({{"image", as_utf8(image)}, {"top", std::move(top)}});
  }
  if (command.json)
    out << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

void predict(const PredictCommand& command, const Terminal& terminal, Position& position) {
  position.activity = "checkpoint";
  const EvalRequest request = eval_request(command.where, command.set);
  print_warnings(request.point.warnings, terminal);
  const Config& config = request.config;
  const fs::path& checkpoint = request.point.checkpoint;
  const safetensors::File file = open_listed(checkpoint, read_manifest(checkpoint), kModelFile);
  const ModelFacts facts = model_facts(file);
  DKFAC_CHECK(facts.shape.channels == 3, "[predict] the network takes images of ",
              facts.shape.channels, " channels, and photographs have 3; use a network for colours");
  data::Dataset images = dataset_of(command.images, config, facts);
  attach_mean_image(config, {&images});
  require_mean_image(file, images);
  const DevicePlacement place = find_placement(config, comm::make_self(), position);
  Context ctx(place.device, context_options(config));
  position.activity = "checkpoint";
  const auto model = nn::make_model(ctx, model_options(config, facts.shape, 1));
  load_model(ctx, *model, file);
  const auto ema = load_ema(ctx, *model, config, checkpoint);
  const nn::WithEma averages(ema.get());
  position.activity = "evaluation";
  const std::vector<double> logits = logits_of(ctx, *model, config, images);
  std::vector<Probabilities> found;
  const std::int64_t classes = model->outputs();
  for (std::int64_t i = 0; i < images.count; ++i) {
    const double* one = logits.data() + i * classes;
    if (!std::all_of(one, one + classes, [](double x) { return std::isfinite(x); }))
      throw NumericError(fmt::format(
          "[predict] the network's outputs for '{}' are not finite; use a checkpoint of a training "
          "that did not diverge",
          command.images[static_cast<std::size_t>(i)].string()));
    found.push_back(softmax(one, classes));
  }
  print(command, facts, found, terminal.out);
}

}  // namespace

int run(const PredictCommand& command, const Terminal& terminal) {
  return run_job({}, terminal, [&](const std::shared_ptr<comm::Communicator>& comm) {
    if (comm->rank() != 0) return;
    Position position;
    try {
      check_threads();
      predict(command, terminal, position);
    } catch (...) {
      throw RunError(describe_current_exception(0, position), RunError::Scope::this_rank);
    }
  });
}

}  // namespace dkfac::app
