#include <algorithm>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/app/commands.h"
#include "dkfac/comm/launch.h"
#include "dkfac/core/error.h"
#include "dkfac/nn/data.h"

#include "app/job.h"

namespace dkfac::app {

namespace {

std::vector<std::int64_t> histogram(const nn::Dataset& data) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(data.classes), 0);
  for (const std::int32_t label : data.labels) ++out[static_cast<std::size_t>(label)];
  return out;
}

std::string list(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(fmt::format("{:.4f}", value));
  return fmt::format("{}", fmt::join(texts, " "));
}

void print_split(std::ostream& out, const nn::Dataset& data) {
  const nn::Normalization normalization = nn::normalization_of(data);
  out << fmt::format("{}\n", data.name) << fmt::format("  samples      {}\n", data.count)
      << fmt::format("  shape        {}x{}x{}\n", data.height, data.width, data.channels)
      << fmt::format("  of a class   {}\n", fmt::join(histogram(data), " "))
      << fmt::format("  mean         {}\n", list(normalization.mean))
      << fmt::format("  deviation    {}\n", list(normalization.stddev))
      << fmt::format("  fingerprint  {:016x}\n", nn::fingerprint(data));
}

nn::DataSource source_of(const std::string& what) {
  const std::vector<std::string> names = nn::data_names();
  if (std::ranges::find(names, what) != names.end()) return {.name = what};
  const bool is_path = what.find('/') != std::string::npos || std::filesystem::exists(what);
  DKFAC_CHECK(is_path, "[data] '", what, "' is neither a folder nor a data set; known are ",
              fmt::format("{}", fmt::join(names, ", ")));
  return {.name = nn::data_name_at(what), .path = what};
}

void verify(std::ostream& out, const std::string& what) {
  const nn::DataSource source = source_of(what);
  if (const auto folder = nn::data_folder(source); !folder.empty())
    out << fmt::format("{} in {}\n", source.name, folder.string());
  const nn::DataSplits data = nn::load_data(source);
  print_split(out, data.train);
  print_split(out, data.test);
}

}  // namespace

int run(const DataCommand& command, const Terminal& terminal) {
  const auto failure = attempt("data", [&] {
    if (comm::detect_launch().rank == 0) verify(terminal.out, command.what);
  });
  if (!failure) return 0;
  terminal.out.flush();
  terminal.err << error_line(*failure) << std::endl;
  return static_cast<int>(failure->code);
}

}  // namespace dkfac::app
