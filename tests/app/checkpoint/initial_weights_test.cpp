#include "app/checkpoint/initial_weights.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/core/half.h"

#include "app/checkpoint/convert.h"

namespace dkfac::app {
namespace {

using Values = std::map<std::string, std::vector<double>>;

Values values_of(nn::Model& model) {
  Values out;
  for (const nn::NamedTensor& t : model.named_tensors()) {
    std::vector<double>& values = out[t.name];
    for (std::int64_t i = 0; i < t.view.numel(); ++i)
      values.push_back(t.view.dtype() == DType::f64
                           ? static_cast<const double*>(t.view.raw())[i]
                           : static_cast<double>(static_cast<const float*>(t.view.raw())[i]));
  }
  return out;
}

std::unique_ptr<nn::Model> model_with(const std::string& name, std::uint64_t seed,
                                      std::int64_t classes = 10) {
  Context ctx;
  nn::ModelOptions options{.name = name, .classes = classes, .seed = seed};
  if (name == "resnet18") {
    options.input = {16, 16, 3};
    options.width = 4;
  }
  auto model = nn::make_model(ctx, options);
  // Buffers of a new model do not depend on the seed.
  float value = static_cast<float>(seed);
  for (const nn::NamedTensor& t : model->named_tensors())
    for (std::int64_t i = 0; !t.trained && i < t.view.numel(); ++i)
      static_cast<float*>(t.view.raw())[i] = value += 0.25F;
  return model;
}

safetensors::File file_of(std::vector<safetensors::Item> items,
                          const safetensors::Metadata& metadata = {}) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "initial.safetensors";
  std::filesystem::remove(path);
  (void)safetensors::write(path, std::move(items), metadata);
  return safetensors::File::read(path);
}

safetensors::File torch_file(nn::Model& model) {
  const std::int64_t steps = 7;
  TorchItems items = to_torch(model, steps);
  return file_of(std::move(items.items));
}

TEST(InitialWeights, UndoTheExportInBothLayouts) {
  for (const std::string name : {"lenet-bn", "resnet18"}) {
    Context ctx;
    const auto from = model_with(name, 1), to = model_with(name, 2);
    ASSERT_NE(values_of(*from), values_of(*to));
    const InitialWeights torch = read_initial_weights(ctx, *to, torch_file(*from));
    EXPECT_EQ(values_of(*from), values_of(*to)) << name;
    EXPECT_TRUE(torch.drawn.empty());
    EXPECT_EQ(torch.taken, std::ssize(from->named_tensors()));

    const auto again = model_with(name, 3);
    std::vector<safetensors::Item> native;
    for (const nn::NamedTensor& t : from->named_tensors())
      native.push_back(safetensors::item(t.name, t.view));
    (void)read_initial_weights(ctx, *again, file_of(std::move(native), {{"layout", "native: x"}}));
    EXPECT_EQ(values_of(*from), values_of(*again)) << name;
  }
}

TEST(InitialWeights, DrawAClassifierOfAnotherSize) {
  Context ctx;
  const auto from = model_with("resnet18", 1, 10), to = model_with("resnet18", 2, 7);
  const Values before = values_of(*to), wanted = values_of(*from);
  const InitialWeights weights = read_initial_weights(ctx, *to, torch_file(*from));
  ASSERT_EQ(weights.drawn.size(), 2u);
  EXPECT_NE(describe(weights, "net").find("fc.weight is F32 [10, 32]"), std::string::npos)
      << describe(weights, "net");
  for (const auto& [name, values] : values_of(*to))
    EXPECT_EQ(values, name.starts_with("fc.") ? before.at(name) : wanted.at(name)) << name;
}

TEST(InitialWeights, ConvertTypes) {
  Context ctx;
  const auto from = model_with("lenet-bn", 1), to = model_with("lenet-bn", 2);
  const std::int64_t steps = 0;
  for (const std::string type : {"F16", "BF16", "F64"}) {
    TorchItems items = to_torch(*from, steps);
    std::deque<std::vector<std::byte>> storage;
    for (safetensors::Item& item : items.items) {
      if (item.dtype != "F32") continue;
      const std::size_t count = item.data.size() / 4, size = type == "F64" ? 8 : 2;
      std::vector<std::byte>& bytes = storage.emplace_back(count * size);
      for (std::size_t i = 0; i < count; ++i) {
        float x = 0;
        std::memcpy(&x, item.data.data() + 4 * i, 4);
        const double wide = x;
        const std::uint16_t bits = type == "F16" ? to_f16(x).bits : to_bf16(x).bits;
        std::memcpy(bytes.data() + size * i,
                    size == 8 ? static_cast<const void*>(&wide) : static_cast<const void*>(&bits),
                    size);
      }
      item.dtype = type;
      item.data = bytes;
    }
    (void)read_initial_weights(ctx, *to, file_of(std::move(items.items)));
    const Values wanted = values_of(*from);
    for (const auto& [name, values] : values_of(*to))
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto exact = static_cast<float>(wanted.at(name)[i]);
        const double rounded = type == "F16"    ? to_float(to_f16(exact))
                               : type == "BF16" ? to_float(to_bf16(exact))
                                                : exact;
        ASSERT_EQ(values[i], rounded) << type << ' ' << name << ' ' << i;
      }
  }
}

TEST(InitialWeights, RefuseValuesThatNoNetworkHas) {
  struct Case {
    const char *name, *type;
    double value;
    const char* said;  ///< Empty: the value is accepted.
  };
  const Case cases[] = {
      {"fc1.weight", "F32", NAN, "fc1.weight has a value that is not finite"},
      {"bn1.running_mean", "F32", -INFINITY, "bn1.running_mean has a value"},
      {"fc1.weight", "F64", 1e300, "not finite in f32"},
      {"bn1.running_var", "F32", -1, "bn1.running_var has a value that is negative"},
      {"bn1.running_var", "F32", 0, ""},
      {"fc1.weight", "F64", 1e30, ""}};
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.name << ' ' << c.type << ' ' << c.value);
    Context ctx;
    const auto from = model_with("lenet-bn", 1), to = model_with("lenet-bn", 2);
    const std::int64_t steps = 0;
    TorchItems items = to_torch(*from, steps);
    std::vector<std::byte> bytes;
    for (safetensors::Item& item : items.items) {
      if (item.name != c.name) continue;
      const std::size_t size = std::string(c.type) == "F64" ? 8 : 4, count = item.data.size() / 4;
      const auto narrow = static_cast<float>(size == 4 ? c.value : 0);
      bytes.resize(count * size);
      std::memcpy(bytes.data() + size, size == 8 ? static_cast<const void*>(&c.value) : &narrow,
                  size);
      item.dtype = c.type;
      item.data = bytes;
    }
    ASSERT_FALSE(bytes.empty());
    const safetensors::File file = file_of(std::move(items.items));
    if (std::string(c.said).empty()) {
      EXPECT_NO_THROW((void)read_initial_weights(ctx, *to, file));
      continue;
    }
    try {
      (void)read_initial_weights(ctx, *to, file);
      ADD_FAILURE() << "accepted";
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(c.said), std::string::npos) << error.what();
    }
  }
}

TEST(InitialWeights, OfAnotherModelAreRefusedByName) {
  Context ctx;
  const auto from = model_with("lenet-bn", 1), to = model_with("resnet18", 2);
  try {
    (void)read_initial_weights(ctx, *to, torch_file(*from));
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("conv1.weight"), std::string::npos) << error.what();
  }
  const std::int64_t steps = 0;
  TorchItems items = to_torch(*from, steps);
  items.items.pop_back();
  std::erase_if(items.items, [](const auto& item) { return item.name.ends_with("running_var"); });
  const auto same = model_with("lenet-bn", 2);
  EXPECT_THROW((void)read_initial_weights(ctx, *same, file_of(std::move(items.items))), DataError);
}

}  // namespace
}  // namespace dkfac::app
