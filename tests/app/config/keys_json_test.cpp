#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/config/keys.h"

namespace dkfac::app {
namespace {

using nlohmann::json;

TEST(ConfigListingJson, DescribesEveryKey) {
  const json listing = json::parse(config_listing_json());
  ASSERT_EQ(listing.at("keys").size(), config_keys().size());
  for (std::size_t i = 0; i < config_keys().size(); ++i) {
    const Key& key = config_keys()[i];
    const json& entry = listing.at("keys").at(i);
    EXPECT_EQ(entry.at("path"), key.path);
    EXPECT_EQ(entry.at("allowed"), expectation(key));
    EXPECT_EQ(entry.contains("only"), !key.only.selector.empty()) << key.path;
    EXPECT_EQ(entry.value("choices", std::vector<std::string>{}), key.choices) << key.path;
  }
}

TEST(ConfigListingJson, HasOnlyTheLimitsThatThereAre) {
  const json listing = json::parse(config_listing_json());
  for (const json& entry : listing.at("keys")) {
    if (entry.at("path") == "run.epochs") {
      EXPECT_EQ(entry.at("least"), 1);
      EXPECT_FALSE(entry.contains("above"));
    }
    if (entry.at("path") == "optimizer.damping") {
      EXPECT_EQ(entry.at("least"), 0);
      EXPECT_FALSE(entry.contains("above"));
      EXPECT_FALSE(entry.contains("most"));
      EXPECT_EQ(entry.at("only").at("values"), json({"kfac"}));
    }
    if (entry.at("path") == "optimizer.relative_damping") {
      EXPECT_EQ(entry.at("above"), 0);
      EXPECT_EQ(entry.at("only").at("values"), json({0.0})) << "of a number";
    }
  }
}

}  // namespace
}  // namespace dkfac::app
