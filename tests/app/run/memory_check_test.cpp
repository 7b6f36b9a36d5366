#include "app/run/memory_check.h"

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::app {
namespace {

template <class Body>
std::string refusal_of(Body&& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

TEST(MemoryCheck, KnowsWhatTheMachineHas) {
  ASSERT_TRUE(available_memory());
  EXPECT_GT(*available_memory(), 1 << 20);
  EXPECT_LT(*available_memory(), 1e18);
}

TEST(MemoryCheck, RefusesWhatIsNotThereWithSizesAndRemedy) {
  EXPECT_EQ(refusal_of([] { check_memory(1000, "[test] things", "take fewer"); }), "");
  const std::string text =
      refusal_of([] { check_memory(3 * 0x1p60, "[test] things", "take fewer"); });
  EXPECT_EQ(text.find("[test] things need 3 EiB of memory"), 0U) << text;
  EXPECT_NE(text.find("; take fewer"), std::string::npos) << text;
}

TEST(MemoryCheck, RefusesDataAndBatchesThatNoMachineHolds) {
  Config config;
  config.data.name = "synthetic";
  EXPECT_EQ(refusal_of([&] { check_data_memory(config); }), "");
  config.data.synthetic_train = 1'000'000'000'000;
  EXPECT_NE(refusal_of([&] { check_data_memory(config); }).find("1000000000000"),
            std::string::npos);
  config.data.name = "fashion-mnist-small";  // Of which the files say how many there are.
  EXPECT_EQ(refusal_of([&] { check_data_memory(config); }), "");

  const nn::ModelOptions model{.name = "resnet20", .input = {32, 32, 3}};
  EXPECT_EQ(refusal_of([&] { check_model_memory(model, 1, 1); }), "");
  for (const std::int64_t samples : {std::int64_t{1} << 40, std::int64_t{1} << 62}) {
    const std::string text = refusal_of([&] { check_model_memory(model, samples, 1); });
    EXPECT_NE(text.find("train.global_batch"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace dkfac::app
