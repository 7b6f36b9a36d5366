#include "nn/backends/cuda/cudnn/plan_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>
#include <utility>

namespace dkfac::nn::cudnn {
namespace {

constexpr const char* kFormat = "dkfac cudnn plans 1";
constexpr const char* kSeparator = " | ";
constexpr const char* kFused = "fused";
constexpr const char* kSeparate = "separate";

std::optional<EngineChoice> choice_of(const std::string& text) {
  std::istringstream in(text);
  std::string engine, knobs;
  EngineChoice choice;
  if (!(in >> engine >> choice.engine >> knobs) || engine != "engine" || knobs != "knobs")
    return std::nullopt;
  for (std::int64_t type = 0, value = 0; in >> std::ws && !in.eof();) {
    char colon = 0;
    if (!(in >> type >> colon >> value) || colon != ':') return std::nullopt;
    choice.knobs.emplace_back(type, value);
  }
  return choice;
}

}  // namespace

PlanFile::PlanFile(std::string path) : path_(std::move(path)) { read(); }

std::optional<EngineChoice> PlanFile::find(const std::string& key) const {
  const auto found = choices_.find(key);
  return found == choices_.end() ? std::nullopt : choice_of(found->second);
}

std::optional<bool> PlanFile::find_fusion(const std::string& key) const {
  const auto found = choices_.find(key);
  return found == choices_.end() ? std::nullopt : std::optional(found->second == kFused);
}

void PlanFile::add_fusion(const std::string& key, bool used) {
  add_line(key, used ? kFused : kSeparate);
}

void PlanFile::add_line(const std::string& key, const std::string& choice) {
  read();
  choices_[key] = choice;
  write();
}

void PlanFile::read() {
  if (!std::filesystem::exists(path_)) return;
  std::ifstream in(path_);
  if (!in) throw IoError(detail::concat("[conv2d] '", path_, "' cannot be read"));
  const auto check_line = [&](bool good, int number) {
    if (good) return;
    throw DataError(detail::concat("[conv2d] line ", number, " of '", path_,
                                   "' is not of a file of plans; delete it to measure anew"));
  };
  std::string line;
  check_line(static_cast<bool>(std::getline(in, line)) && line == kFormat, 1);
  for (int number = 2; std::getline(in, line); ++number) {
    const auto between = line.find(kSeparator);
    check_line(between != std::string::npos, number);
    const std::string choice = line.substr(between + std::string(kSeparator).size());
    check_line(choice == kFused || choice == kSeparate || choice_of(choice), number);
    choices_[line.substr(0, between)] = choice;
  }
}

void PlanFile::write() const {
  const std::string beside = detail::concat(path_, ".", ::getpid());
  {
    std::ofstream out(beside, std::ios::trunc);
    out << kFormat << '\n';
    for (const auto& [key, choice] : choices_) out << key << kSeparator << choice << '\n';
    out.flush();
    if (!out) throw IoError(detail::concat("[conv2d] '", beside, "' cannot be written"));
  }
  std::error_code error;
  std::filesystem::rename(beside, path_, error);
  if (error) {
    throw IoError(detail::concat("[conv2d] '", beside, "' cannot be renamed to '", path_,
                                 "': ", error.message()));
  }
}

}  // namespace dkfac::nn::cudnn
