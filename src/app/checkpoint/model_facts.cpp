#include "app/checkpoint/model_facts.h"

#include <sstream>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"
#include "dkfac/data/photo_data.h"

#include "app/checkpoint/mean_image.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

/// Reads a JSON array of `Element`s; an empty one if the file has none.
template <class Element>
std::vector<Element> list_of(const safetensors::File& file, const char* key) {
  const std::string text = file.fact(key);
  if (text.empty()) return {};
  try {
    return nlohmann::json::parse(text).get<std::vector<Element>>();
  } catch (const nlohmann::json::exception&) {
    throw DataError(
        fmt::format("[checkpoint] '{}' has metadata {} that are no list; use another "
                    "checkpoint",
                    file.source(), key));
  }
}

}  // namespace

safetensors::Metadata facts_of(const nn::Model& model, const data::Dataset& train,
                               const data::Normalization& normalization) {
  const Shape& input = model.input();
  safetensors::Metadata facts{
      {"input", fmt::format("{}x{}x{} {}", input[0], input[1], input[2], model.outputs())},
      {"mean", nlohmann::json(normalization.mean).dump()},
      {"stddev", nlohmann::json(normalization.stddev).dump()}};
  if (const std::string mean = mean_image_text(normalization); !mean.empty())
    facts["mean_image"] = mean;
  if (train.photos != nullptr) {
    auto names = nlohmann::json::array();
    for (const std::string& name : train.photos->source->classes()) names.push_back(as_utf8(name));
    facts["classes"] = names.dump();
  }
  return facts;
}

data::Dataset data_shape(const safetensors::File& file) {
  data::Dataset data;
  std::istringstream shape(file.fact("input"));
  char x = 0;
  if (!(shape >> data.height >> x >> data.width >> x >> data.channels >> data.classes))
    throw DataError(
        fmt::format("[checkpoint] '{}' does not contain the input shape of its model; use the "
                    "program that wrote it",
                    file.source()));
  return data;
}

ModelFacts model_facts(const safetensors::File& file) {
  ModelFacts facts{.shape = data_shape(file), .classes = list_of<std::string>(file, "classes")};
  auto mean = list_of<double>(file, "mean"), stddev = list_of<double>(file, "stddev");
  const auto channels = static_cast<std::size_t>(facts.shape.channels);
  if (mean.size() != channels || stddev.size() != channels)
    throw DataError(
        fmt::format("[checkpoint] '{}' does not say how its images are normalised; "
                    "resume its run for a step, which writes it",
                    file.source()));
  facts.normalization = {.mean = std::move(mean), .stddev = std::move(stddev)};
  return facts;
}

}  // namespace dkfac::app
