#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/config/keys.h"
#include "app/run/placement.h"

namespace dkfac::app {
namespace {

/// What becomes of a key that is given a value other than its default.
enum class Fate { honoured, refused, told };

/// Backends that a run can have: the host, and a GPU with NCCL or with staging through the host.
struct Fates {
  std::string value;
  Fate host, nccl, staged;
};

/// Keys that concern a device or a communicator. `told`: a run goes on without it and counts that
/// in its result (fused_moments and fused_backward of result.json).
const std::map<std::string, Fates>& bound_keys() {
  using enum Fate;
  static const std::map<std::string, Fates> keys = {
      {"run.device", {"cpu", honoured, honoured, honoured}},
      {"run.tf32", {"true", refused, honoured, honoured}},
      {"optimizer.precondition_tf32", {"true", refused, honoured, honoured}},
      {"run.graphs", {"off", honoured, honoured, honoured}},
      {"run.hierarchical", {"2", honoured, refused, honoured}},
      {"data.resident", {"yes", refused, honoured, honoured}},
      {"model.fused_moments", {"on", told, honoured, honoured}},
      {"model.fused_backward", {"on", told, honoured, honoured}}};
  return keys;
}

Fate fate_of(const std::string& key, const std::string& value, const std::string& device,
             const std::string& backend) {
  try {
    std::vector<std::string> set{"data.name=cifar-10", key + "=" + value};
    if (key != "run.device") set.push_back("run.device=" + device);
    const Config config = parse_config("", set, "test");
    require_levels(config, backend);
    const bool fused = config.model.fused_moments == nn::FusionUse::on ||
                       config.model.fused_backward == nn::FusionUse::on;
    return fused && device == "cpu" ? Fate::told : Fate::honoured;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    return Fate::refused;
  }
}

TEST(BackendKeys, AreHonouredRefusedOrTold) {
  for (const auto& [key, fates] : bound_keys()) {
    ASSERT_NE(find_key(key), nullptr) << key;
    EXPECT_EQ(fate_of(key, fates.value, "cpu", "in_process"), fates.host) << key;
    EXPECT_EQ(fate_of(key, fates.value, "cuda", "nccl"), fates.nccl) << key;
    EXPECT_EQ(fate_of(key, fates.value, "cuda", "host_staged"), fates.staged) << key;
  }
}

TEST(BackendKeys, AreAllListedHere) {
  for (const Key& key : config_keys()) {
    bool bound = false;
    for (const char* word : {"GPU", "CUDA", "cuDNN", "per node", "TF32", "on a device"})
      bound = bound || key.help.find(word) != std::string::npos;
    EXPECT_EQ(bound, bound_keys().contains(key.path))
        << key.path << ": " << key.help << "; decide what becomes of it on each backend";
  }
}

/// A value of the key other than its default, as text for --set; empty for text, seeds and knots.
std::string other_value(const Key& key) {
  const Value now = key.get(Config{});
  if (key.type == KeyType::boolean) return std::get<bool>(now) ? "false" : "true";
  if (key.type == KeyType::choice)
    for (const std::string& name : key.choices)
      if (name != std::get<std::string>(now)) return name;
  return {};
}

TEST(BackendKeys, OthersReadTheSameOnEveryDevice) {
  std::set<std::string> walked;
  for (const Key& key : config_keys()) {
    const std::string value = other_value(key);
    if (value.empty() || bound_keys().contains(key.path)) continue;
    std::vector<std::string> set;
    for (const Key* at = &key; !at->only.selector.empty(); at = find_key(at->only.selector))
      set.insert(set.begin(), at->only.selector + "=" + at->only.values.front());
    set.push_back(key.path + "=" + value);
    std::vector<std::string> said;
    for (const char* device : {"cpu", "cuda"}) {
      std::vector<std::string> all = set;
      all.push_back(std::string("run.device=") + device);
      try {
        said.push_back(to_toml(key.get(parse_config("", all, "test"))));
      } catch (const InvalidArgument& error) {
        said.emplace_back(error.what());
      }
    }
    EXPECT_EQ(said[0], said[1]) << key.path;
    walked.insert(key.path);
  }
  EXPECT_GT(walked.size(), std::size_t{20});
}

}  // namespace
}  // namespace dkfac::app
