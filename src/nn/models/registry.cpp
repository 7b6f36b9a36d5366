#include "dkfac/core/error.h"

#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Layer> (*make)(const ModelOptions&);
  WeightInit init = WeightInit::he_normal;
};
constexpr Entry kModels[] = {{"mlp", make_mlp},
                             {"lenet-bn", make_lenet_bn},
                             {"resnet9", make_resnet9, WeightInit::uniform},
                             {"resnet9-plain", make_resnet9_plain, WeightInit::uniform},
                             {"resnet18", make_resnet18},
                             {"resnet20", make_resnet20},
                             {"resnet32", make_resnet32},
                             {"resnet50", make_resnet50}};

std::string known_names() {
  std::string text;
  for (const Entry& entry : kModels) text += (text.empty() ? "" : ", ") + std::string(entry.name);
  return text;
}

const Entry& find(const std::string& name) {
  for (const Entry& entry : kModels) {
    if (name == entry.name) return entry;
  }
  throw InvalidArgument(detail::concat("[make_model] there is no model '", name,
                                       "'; choose one of: ", known_names()));
}

void check_options(const ModelOptions& options) {
  DKFAC_CHECK(options.classes > 0, "[make_model] classes is ", options.classes, "; it must be > 0");
  DKFAC_CHECK(options.width >= 0, "[make_model] width is ", options.width,
              "; it must be > 0, or 0 for the published one");
  DKFAC_CHECK(!options.classifier_stddev || *options.classifier_stddev > 0,
              "[make_model] classifier_stddev is ", *options.classifier_stddev, "; it must be > 0");
}

}  // namespace

void check_image(const ModelOptions& options, std::int64_t least) {
  const Shape& image = options.input;
  const bool fits = image.ndim() == 3 && image[0] >= least && image[1] >= least && image[2] > 0;
  DKFAC_CHECK(fits, "[make_model] ", options.name, " takes images [h, w, c] of ", least, "x", least,
              " pixels or more, not ", image, "; choose other data or another model");
}

std::unique_ptr<Model> make_model(Context& ctx, const ModelOptions& options) {
  const Entry& entry = find(options.name);
  check_options(options);
  auto model = std::make_unique<Model>(ctx, options.name, entry.make(options), options.input,
                                       options.dtype, options.seed, options.compute);
  initialize_weights(*model, options.init.value_or(entry.init), options);
  return model;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kModels) names.emplace_back(entry.name);
  return names;
}

}  // namespace dkfac::nn
