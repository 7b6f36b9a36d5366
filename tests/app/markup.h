#pragma once

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace dkfac::app::testing {

/// A strict reader of XML without namespaces, comments and processing instructions: what is wrong
/// with the first element that is not well-formed, or "" when all is well. Identifiers must be
/// unique. Collects the text outside of tags, without <style>.
class Markup {
 public:
  explicit Markup(std::string_view text) : rest_(text) {
    constexpr std::string_view kDoctype = "<!DOCTYPE html>\n";
    if (rest_.starts_with(kDoctype)) rest_.remove_prefix(kDoctype.size());
    while (problem_.empty() && !rest_.empty()) rest_.front() == '<' ? read_tag() : read_text();
    if (problem_.empty() && !open_.empty()) problem_ = "<" + open_.back() + "> is not closed";
    if (problem_.empty() && roots_ != 1) problem_ = "there is not one root element";
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] const std::string& text() const { return text_; }
  /// How many elements of this name there are.
  [[nodiscard]] std::ptrdiff_t count(const std::string& name) const {
    return std::ranges::count(names_, name);
  }

 private:
  void read_text() {
    const std::string_view run = rest_.substr(0, rest_.find('<'));
    rest_.remove_prefix(run.size());
    check_text(run);
    const bool blank = run.find_first_not_of(" \n\t") == std::string_view::npos;
    if (open_.empty() && !blank) problem_ = "text outside of the root";
    if (!open_.empty() && open_.back() != "style") text_ += run;
  }

  void check_text(std::string_view run) {
    for (auto at = run.find('&'); at != std::string_view::npos; at = run.find('&', at + 1)) {
      const std::string_view entity = run.substr(at, run.find(';', at) - at + 1);
      const std::set<std::string_view> known{"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
      if (!known.contains(entity)) problem_ = "a bare & at " + std::string(run.substr(at, 20));
    }
    if (run.find('<') != std::string_view::npos) problem_ = "a bare < in an attribute";
    const bool control = std::ranges::any_of(
        run, [](char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t'; });
    if (control) problem_ = "a control character";
  }

  void read_tag() {
    rest_.remove_prefix(1);
    if (rest_.starts_with('/')) return read_end();
    const std::string name = read_name();
    if (name.empty()) return fail("a tag without a name");
    names_.push_back(name);
    roots_ += open_.empty() ? 1 : 0;
    std::set<std::string> attributes;
    for (;;) {
      const auto gap = std::min(rest_.find_first_not_of(" \n\t"), rest_.size());
      rest_.remove_prefix(gap);
      if (rest_.starts_with("/>")) return rest_.remove_prefix(2);
      if (rest_.starts_with('>')) {
        rest_.remove_prefix(1);
        return open_.push_back(name);
      }
      const std::string attribute = read_name();
      if (gap == 0 || attribute.empty()) return fail("a broken tag <" + name);
      if (!attributes.insert(attribute).second) return fail(attribute + " twice in <" + name);
      read_value(attribute);
      if (!problem_.empty()) return;
    }
  }

  void read_end() {
    rest_.remove_prefix(1);
    const std::string name = read_name();
    if (open_.empty() || open_.back() != name) {
      return fail("</" + name + "> closes " + (open_.empty() ? "nothing" : open_.back()));
    }
    if (!rest_.starts_with('>')) return fail("a broken end tag </" + name);
    open_.pop_back();
    rest_.remove_prefix(1);
  }

  void read_value(const std::string& attribute) {
    if (!rest_.starts_with("=\"")) return fail(attribute + " has no quoted value");
    rest_.remove_prefix(2);
    const auto end = rest_.find('"');
    if (end == std::string_view::npos) return fail(attribute + " has an open quote");
    check_text(rest_.substr(0, end));
    if (attribute == "id" && !ids_.emplace(rest_.substr(0, end)).second) {
      return fail("id " + std::string(rest_.substr(0, end)) + " twice");
    }
    rest_.remove_prefix(end + 1);
  }

  std::string read_name() {
    std::size_t n = 0;
    while (n < rest_.size() &&
           (std::isalnum(static_cast<unsigned char>(rest_[n])) != 0 || rest_[n] == '-')) {
      ++n;
    }
    std::string name(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return name;
  }

  void fail(std::string problem) { problem_ = std::move(problem); }

  std::string_view rest_;
  std::vector<std::string> open_, names_;
  std::set<std::string> ids_;
  std::string problem_, text_;
  int roots_ = 0;
};

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace dkfac::app::testing
