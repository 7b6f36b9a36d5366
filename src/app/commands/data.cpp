#include <algorithm>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"
#include "dkfac/data/photo_data.h"

#include "app/checkpoint/mean_image.h"
#include "app/run/job.h"
#include "app/shared/commands.h"
#include "core/shared/printable.h"
#include "data/shared/photo_shards.h"

namespace dkfac::app {

namespace {

constexpr std::size_t kName = 1000;  ///< Longest name of a photograph with its error.

std::vector<std::int64_t> histogram(const data::Dataset& data) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(data.classes), 0);
  for (const std::int32_t label : data.labels) ++out[static_cast<std::size_t>(label)];
  return out;
}

std::string list(const std::vector<double>& values) {
  std::vector<std::string> texts;
  for (const double value : values) texts.push_back(fmt::format("{:.4f}", value));
  return fmt::format("{}", fmt::join(texts, " "));
}

std::string size_text(const data::ImageSize& size) {
  return fmt::format("{}x{}", size.height, size.width);
}

/// Prints a report of photographs, all of which are decoded. Returns the number of bad ones.
std::size_t print_photos(std::ostream& out, const data::Dataset& data) {
  const data::PhotoReport report = data::check_photos(*data.photos->source);
  const std::vector<std::int64_t> classes = histogram(data);
  const auto [least, most] = std::ranges::minmax(classes);
  out << fmt::format("{}\n", data.name) << fmt::format("  samples      {}\n", data.count)
      << fmt::format("  classes      {} of {} to {} samples\n", data.classes, least, most)
      << fmt::format("  sizes        {} to {}\n", size_text(report.smallest),
                     size_text(report.largest))
      << fmt::format("  bad          {}\n", report.bad.size())
      << fmt::format("  fingerprint  {:016x}\n", data::fingerprint(data));
  constexpr std::size_t kNames = 10;
  for (std::size_t i = 0; i < std::min(kNames, report.bad.size()); ++i)
    out << fmt::format("    {}\n", printable(report.bad[i], kName));
  return report.bad.size();
}

std::size_t print_split(std::ostream& out, const data::Dataset& data) {
  if (data.photos != nullptr) return print_photos(out, data);
  const data::Normalization normalization = data::normalization_of(data);
  out << fmt::format("{}\n", data.name) << fmt::format("  samples      {}\n", data.count)
      << fmt::format("  shape        {}x{}x{}\n", data.height, data.width, data.channels)
      << fmt::format("  of a class   {}\n", fmt::join(histogram(data), " "))
      << fmt::format("  mean         {}\n", list(normalization.mean))
      << fmt::format("  deviation    {}\n", list(normalization.stddev))
      << fmt::format("  fingerprint  {:016x}\n", data::fingerprint(data));
  return 0;
}

data::DataSource source_of(const std::string& what) {
  data::DataSource source{.name = what};
  // A folder that is verified is not written to, and all of it is read.
  source.photo_index = false;
  const std::vector<std::string> names = data::data_names();
  if (std::ranges::find(names, what) != names.end()) return source;
  const bool is_path = what.find('/') != std::string::npos || std::filesystem::exists(what);
  DKFAC_CHECK(is_path, "[data] '", what, "' is neither a folder nor a data set; known are ",
              fmt::format("{}", fmt::join(names, ", ")));
  source.name = data::data_name_at(what);
  source.path = what;
  return source;
}

void verify(const Terminal& terminal, const std::string& what) {
  std::ostream& out = terminal.out;
  const data::DataSource source = source_of(what);
  if (const auto folder = data::data_folder(source); !folder.empty())
    out << fmt::format("{} in {}\n", source.name, printable(folder.string(), kName));
  const data::DataSplits data = data::load_data(source);
  print_warnings(data.remarks, terminal);
  const std::size_t bad = print_split(out, data.train) + print_split(out, data.test);
  if (bad > 0)
    throw DataError(
        fmt::format("[data] {} of {} photographs of {} are bad; replace or remove them, "
                    "or train with data.bad_sample = \"skip\"",
                    bad, data.train.count + data.test.count, source.name));
  if (data.train.photos == nullptr) return;
  for (const char* split : {"train", "val", "test"}) {
    const std::filesystem::path folder = data::data_folder(source) / split;
    if (data::holds_shards(folder)) data::verify_shards(folder);
  }
}

void pack(const Terminal& terminal, const DataCommand& command) {
  std::ostream& out = terminal.out;
  const std::filesystem::path from(command.what);
  const data::PackOptions options{
      .shorter = command.shorter, .square = command.square, .workers = command.workers};
  std::vector<std::pair<std::string, data::PhotoSet>> sets;
  for (const std::string split : {"train", "val", "test"}) {
    if (split != "train" && !std::filesystem::is_directory(from / split)) continue;
    const auto classes = sets.empty() ? std::vector<std::string>() : sets.front().second.classes;
    sets.emplace_back(split, data::read_photo_set(from / split, {}, classes));
    if (const std::string remark = data::left_out_text(sets.back().second); !remark.empty())
      print_warnings({remark}, terminal);
  }
  // All are listed first, so that a fault of the last is told before the first takes its hours.
  for (auto& [split, set] : sets) {
    const data::PackResult result =
        data::pack_photos(*data::folder_source(std::move(set)), command.to / split, options);
    out << fmt::format("{}: {} photographs, {:.1f} MB in {} files, {} bad ones left out\n", split,
                       result.photos, static_cast<double>(result.bytes) / 1e6, result.shards,
                       result.bad.size());
    for (const std::string& why : result.bad) out << fmt::format("    {}\n", printable(why, kName));
  }
}

void write_mean(const Terminal& terminal, const DataCommand& command) {
  DKFAC_CHECK(!std::filesystem::exists(command.mean_to), "[data] '", command.mean_to.string(),
              "' exists; remove it, or choose another name");
  DKFAC_CHECK(command.mean_to.has_filename(), "[data] '", command.mean_to.string(),
              "' names a folder; name a file in it");
  const data::DataSplits splits = data::load_data(source_of(command.what));
  const data::Dataset& train = splits.train;
  print_warnings(splits.remarks, terminal);
  DKFAC_CHECK(!command.size || train.photos != nullptr, "[data] --size is of photographs, and ",
              train.name, " has images of ", train.height, "x", train.width, "; leave it out");
  const auto folder = std::filesystem::absolute(command.mean_to).parent_path();
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    throw IoError(fmt::format("[data] cannot create '{}' ({}); choose another place",
                              folder.string(), failed.message()));
  const data::FoundMeanImage found =
      data::find_mean_image(train, command.size.value_or(256), command.workers);
  write_mean_image(command.mean_to, found, train.name);
  terminal.out << fmt::format("{}: mean of {} pictures of {}, {}x{}x{}, {} bad ones left out\n",
                              printable(command.mean_to.string(), kName), found.pictures,
                              train.name, found.image.height, found.image.width,
                              found.image.channels, found.bad);
}

}  // namespace

int run(const DataCommand& command, const Terminal& terminal) {
  return run_alone("data", terminal, [&] {
    if (!command.mean_to.empty())
      write_mean(terminal, command);
    else if (!command.to.empty())
      pack(terminal, command);
    else
      verify(terminal, command.what);
  });
}

}  // namespace dkfac::app
