#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/bench/bench.h"
#include "app/config/keys.h"
#include "app/run/memory_check.h"

namespace dkfac::app::bench {

namespace {

constexpr std::int64_t kLabelledClasses = 10;  // Generating patterns of every class would be slow.
constexpr std::uint64_t kImageSeed = 1;

/// Returns whether the key of "key=value" applies to `optimizer`, also through the choices that it
/// depends on.
bool has_setting(const std::string& optimizer, const std::string& text) {
  const Key* key = find_key(text.substr(0, text.find('=')));
  while (key != nullptr && key->only.selector != "optimizer.type")
    key = key->only.selector.empty() ? nullptr : find_key(key->only.selector);
  return key == nullptr || std::ranges::count(key->only.values, optimizer) > 0;
}

/// Refuses settings of what options decide, since those are what the results are labelled with.
void check_settings(const BenchCommand& command) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOptions = {{
      {"model.name", "--model"},
      {"train.global_batch", "--batch"},
      {"optimizer.type", "--optimizer"},
      {"run.precision", "--precision"},
      {"run.threads", "--threads"},
  }};
  for (const std::string& text : command.set) {
    const std::string key = split_override(text).first;
    const auto option =
        std::ranges::find(kOptions, key, [](const auto& pair) { return pair.first; });
    DKFAC_CHECK(option == kOptions.end(), "[bench] --set ", shortened(text), " is what ",
                option->second, " sets; use that");
    DKFAC_CHECK(!key.starts_with("data.") && key != "run.epochs", "[bench] --set ", shortened(text),
                " has no effect on steps of synthetic images; leave it out (--input and --classes "
                "set their shape)");
  }
}

void check_on_cpu(const Config& config) {
  DKFAC_CHECK(device_choice(config).kind == Device::Kind::cpu, "[bench] run.device = \"",
              config.run.device, "\", and dkfac bench measures on the CPU; leave it out");
}

}  // namespace

Shape input_of(const BenchCommand& command) {
  if (command.input.empty()) return {32, 32, 3};
  DKFAC_CHECK(command.input.size() == 3 && *std::ranges::min_element(command.input) > 0,
              "[bench] --input takes height, width and channels, all > 0; e.g. --input 32 32 3");
  return {command.input[0], command.input[1], command.input[2]};
}

data::DataSplits bench_data(const BenchCommand& command, std::int64_t count) {
  DKFAC_CHECK(command.batch > 0, "[bench] --batch is ", command.batch, "; it must be > 0");
  const std::int64_t labelled = std::min(command.classes, kLabelledClasses);
  data::DataSplits data;
  check_memory(data::synthetic_bytes({.name = "synthetic",
                                      .synthetic_train = count,
                                      .synthetic_test = count,
                                      .synthetic_image = input_of(command),
                                      .synthetic_classes = labelled}),
               detail::concat("[bench] --batch ", command.batch, " images of ", input_of(command)),
               "lower --batch or --input");
  data.train = data::synthetic_images(count, input_of(command), labelled, kImageSeed);
  data.train.classes = command.classes;
  data.test = data.train;
  return data;
}

Config bench_config(const BenchCommand& command, const std::string& optimizer, int ranks) {
  check_settings(command);
  std::vector<std::string> set{"run.name=" + optimizer,
                               "run.precision=" + command.precision,
                               fmt::format("run.threads={}", command.threads),
                               "run.log_interval=0",
                               "data.name=synthetic",
                               "data.shuffle=false",
                               "model.name=" + command.model,
                               fmt::format("train.global_batch={}", command.batch * ranks),
                               "optimizer.type=" + optimizer,
                               "lr.schedule=constant",
                               "lr.lr=0.001"};
  for (const std::string& text : command.set) {
    const auto has_it = [&](const std::string& name) { return has_setting(name, text); };
    // A setting that no optimizer has is passed on, so that it is refused with a reason.
    if (has_it(optimizer) || std::ranges::none_of(command.optimizers, has_it)) set.push_back(text);
  }
  Config config = parse_config("", set, "bench");
  check_on_cpu(config);
  return config;
}

Config collectives_config(const BenchCommand& command) {
  constexpr std::array<std::string_view, 5> kKeys = {"run.comm_check", "run.comm_timeout_s",
                                                     "run.hierarchical", "run.require_secret",
                                                     "run.device"};
  for (const std::string& text : command.set) {
    const std::string key = split_override(text).first;
    DKFAC_CHECK(std::ranges::count(kKeys, key) > 0, "[bench] --set ", shortened(text),
                " has no effect on comm, which trains nothing; leave it out (run.comm_check, "
                "run.comm_timeout_s and run.hierarchical have one)");
  }
  Config config = parse_config("", command.set, "bench");
  check_on_cpu(config);
  return config;
}

}  // namespace dkfac::app::bench
