#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

/// Common parts of the benchmarks for a CUDA device: options, clock, data, and main().

/// One option "--key value".
struct Option {
  std::string key;
  std::variant<std::string*, int*> into;
  std::vector<std::string> choices = {};  ///< Allowed texts; empty: any.
  int least = 1;                          ///< Smallest allowed number.
};

/// Lists the options for an error message.
inline std::string list_of(const std::vector<Option>& options) {
  std::string out;
  for (const Option& option : options) {
    out += (out.empty() ? "" : ", ") + option.key + " ";
    if (std::holds_alternative<int*>(option.into)) {
      out += "N >= " + std::to_string(option.least);
    } else if (option.choices.empty()) {
      out += "TEXT";
    }
    for (const std::string& choice : option.choices)
      out += (&choice == &option.choices.front() ? "" : "|") + choice;
  }
  return out;
}

/// Sets `option` and returns true if the value is allowed.
inline bool set_option(const Option& option, const std::string& value) {
  if (auto* const* text = std::get_if<std::string*>(&option.into)) {
    const auto& known = option.choices;
    **text = value;
    return known.empty() || std::find(known.begin(), known.end(), value) != known.end();
  }
  int& number = *std::get<int*>(option.into);
  const char* end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, number);
  return error == std::errc() && rest == end && number >= option.least;
}

inline void parse_options(int argc, char** argv, const std::vector<Option>& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    const auto option = std::find_if(options.begin(), options.end(),
                                     [&](const Option& one) { return one.key == key; });
    if (option == options.end() || i + 1 == argc || !set_option(*option, value))
      throw std::runtime_error("'" + key + " " + value + "' is not one of " + list_of(options));
  }
}

/// Parses the types of `--type` and `--compute`.
inline dkfac::DType type_of(const std::string& name) {
  return std::map<std::string, dkfac::DType>{
      {"f16", dkfac::DType::f16}, {"bf16", dkfac::DType::bf16}, {"f32", dkfac::DType::f32}}
      .at(name);
}
inline const std::vector<std::string> kTypeNames{"f16", "bf16", "f32"};

inline double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

struct Timing {
  int repeats = 5;
  int times = 1;                      ///< Calls of `work` in each repeat.
  std::function<void()> before = {};  ///< Called before each repeat; not timed.
};

/// Returns the median milliseconds of one `work` by the host's clock, with an idle device at both
/// ends. One additional repeat warms up.
inline double median_ms(dkfac::Context& ctx, const Timing& timing,
                        const std::function<void()>& work) {
  std::vector<double> all;
  for (int i = -1; i < timing.repeats; ++i) {
    if (timing.before) timing.before();
    ctx.stream().synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < timing.times; ++k) work();
    ctx.stream().synchronize();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (i >= 0) all.push_back(took.count() / timing.times);
  }
  return median(all);
}

/// Returns `count` elements of `type` on the device, which repeat up to 2^20 values of `draw()`. It
/// is fast, for cases where only sizes matter.
inline dkfac::Tensor repeated_values(dkfac::Context& ctx, std::int64_t count, dkfac::DType type,
                                     const std::function<double()>& draw) {
  using namespace dkfac;
  Context host;
  Tensor wide = Tensor::empty(host, {std::min<std::int64_t>(count, 1 << 20)}, DType::f32);
  for (std::int64_t i = 0; i < wide.numel(); ++i)
    wide.data<float>()[i] = static_cast<float>(draw());
  Tensor some = Tensor::empty(host, wide.shape(), type);
  ops::cast(host, wide, some);
  Tensor out = Tensor::empty(ctx, {count}, type);
  for (std::int64_t at = 0; at < count; at += some.numel()) {
    const std::int64_t length = std::min(some.numel(), count - at);
    ops::copy(ctx, some.view().slice(0, 0, length), out.view().slice(0, at, length));
  }
  ctx.stream().synchronize();
  return out;
}

/// Implements main(). `run` writes the program's JSON object, which is printed and also written to
/// the file of `--json`. Returns 0; 1 for an error, 77 without a CUDA device.
inline int gpu_program(const std::string& name, int argc, char** argv, std::vector<Option> options,
                       const std::function<void(std::ostream&)>& run) {
  try {
    std::string file;
    options.push_back({.key = "--json", .into = &file});
    parse_options(argc, argv, options);
    if (dkfac::available_devices().size() < 2) {
      std::printf("SKIPPED: there is no CUDA device\n");
      return 77;
    }
    std::ostringstream text;
    run(text);
    std::cout << text.str();
    if (!file.empty() && !(std::ofstream(file) << text.str()))
      throw std::runtime_error("cannot write " + file);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return 1;
  }
}
