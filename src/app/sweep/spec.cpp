#include "app/sweep/spec.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <sstream>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"

#include "app/config/settings.h"

namespace dkfac::app {

std::string without_phase(const std::string& path) {
  constexpr std::string_view kPhase = "phase.";
  if (!path.starts_with(kPhase)) return path;
  const std::size_t dot = path.find('.', kPhase.size());
  const std::string number = path.substr(kPhase.size(), dot - kPhase.size());
  const bool digits =
      !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
  return dot != std::string::npos && digits ? path.substr(dot + 1) : path;
}

namespace {

constexpr std::int64_t kMostDraws = 10000;

/// One table of the file, with its context for error messages.
class Reader {
 public:
  Reader(const toml::table& table, std::string source, std::string section)
      : table_(table), source_(std::move(source)), section_(std::move(section)) {}

  [[noreturn]] void refuse(const toml::node& at, const std::string& what) const {
    throw InvalidArgument(fmt::format("[sweep] {}:{}: {}", source_, at.source().begin.line, what));
  }

  [[noreturn]] void refuse(const std::string& what) const { refuse(table_, what); }

  /// Returns [name], or each [[name]] where there may be several.
  [[nodiscard]] std::vector<Reader> sections(const char* name, bool several = false) const {
    const toml::node* node = table_.get(name);
    if (node == nullptr) return {};
    if (const toml::table* one = node->as_table()) return {Reader(*one, source_, name)};
    const toml::array* list = node->as_array();
    if (!several || list == nullptr || !list->is_array_of_tables())
      refuse(*node, fmt::format("{0} is no table; write [{0}]{1}", name,
                                several ? fmt::format(", or [[{}]] for several", name) : ""));
    std::vector<Reader> out;
    for (const toml::node& one : *list) out.emplace_back(*one.as_table(), source_, name);
    return out;
  }

  void only(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, node] : table_)
      if (std::ranges::find(known, key.str()) == known.end())
        refuse(node, fmt::format("unknown key '{}' in {}; there are {}",
                                 shortened(std::string(key.str())),
                                 section_.empty() ? "the file" : "[" + section_ + "]",
                                 fmt::join(known, ", ")));
  }

  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t fallback, std::int64_t low,
                                     std::int64_t high) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return fallback;
    const auto value = node->is_integer() ? node->value<std::int64_t>() : std::nullopt;
    if (!value || *value < low || *value > high)
      refuse(*node,
             fmt::format("{}.{} is no integer in [{}, {}]; write one", section_, key, low, high));
    return *value;
  }

  [[nodiscard]] std::string text(const char* key, const std::string& fallback) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return fallback;
    if (!node->is_string())
      refuse(*node, fmt::format("{}.{} is no text; write it in quotes", section_, key));
    return *node->value<std::string>();
  }

  /// Text, or a list of texts.
  [[nodiscard]] std::vector<std::string> texts(const char* key) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return {};
    if (node->is_string()) return {text(key, "")};
    std::vector<std::string> out;
    const toml::array* list = node->as_array();
    if (list == nullptr) refuse(*node, fmt::format("{}.{} is no list of texts", section_, key));
    for (const toml::node& item : *list) {
      if (!item.is_string())
        refuse(item, fmt::format("{}.{} is no list of texts; write them in quotes", section_, key));
      out.push_back(*item.value<std::string>());
    }
    return out;
  }

  template <class E>
  [[nodiscard]] E name(const char* key, E fallback, std::initializer_list<E> all) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr) return fallback;
    std::vector<std::string_view> names;
    for (const E one : all) {
      names.push_back(name_of(one));
      if (node->is_string() && *node->value<std::string>() == names.back()) return one;
    }
    refuse(*node, fmt::format("{}.{} is not known; write one of \"{}\"", section_, key,
                              fmt::join(names, "\", \"")));
  }

  /// Calls f(path, key, node) for every key of a configuration or of a phase ("phase.N.key"):
  /// "lr.lr" = x, and lr.lr = x without the quotes, which TOML reads as tables. Keys in `more` are
  /// skipped.
  void config_keys(
      std::initializer_list<std::string_view> more,
      const std::function<void(const std::string&, const Key&, const toml::node&)>& f) const {
    std::set<std::string> seen;
    const std::function<void(const std::string&, const toml::node&)> visit =
        [&](const std::string& path, const toml::node& node) {
          const Key* key = find_key(without_phase(path));
          const toml::table* inner = node.as_table();
          if (key == nullptr && inner != nullptr && !inner->empty()) {
            for (const auto& [name, value] : *inner)
              visit(path + "." + std::string(name.str()), value);
            return;
          }
          if (key == nullptr)
            refuse(node, fmt::format("[{}] has an unknown key '{}'; {}", section_, shortened(path),
                                     unknown_key_hint(path)));
          if (!seen.insert(path).second)
            refuse(node, fmt::format("[{}] has {} twice; remove one", section_, path));
          f(path, *key, node);
        };
    for (const auto& [name, node] : table_)
      if (std::ranges::find(more, name.str()) == more.end()) visit(std::string(name.str()), node);
  }

 private:
  const toml::table& table_;
  std::string source_, section_;
};

/// Formats a value as --set accepts it.
std::string override_text(const toml::node& node) {
  if (node.is_string()) return *node.value<std::string>();
  // Shortest form, as in the file: 0.1, not 0.10000000000000001.
  if (node.is_floating_point()) return to_toml(Value(*node.value<double>()));
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return std::move(out).str();
}

/// Returns a value as --set accepts it; refuses one that the key cannot take.
std::string value_of(const Reader& reader, const Key& key, const toml::node& node) {
  std::string text = override_text(node);
  try {
    (void)read_value(key, text);
  } catch (const InvalidArgument&) {
    reader.refuse(node, fmt::format("{} = {} is not allowed; write {} ({})", key.path,
                                    shortened(text), expectation(key), key.help));
  }
  return text;
}

std::vector<std::string> list_of(const Reader& reader, const Key& key, const toml::node& node) {
  const toml::array* list = node.as_array();
  if (list == nullptr || list->empty())
    reader.refuse(node,
                  fmt::format("{} needs a list of values to try, e.g. [0.01, 0.1]", key.path));
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (const toml::node& item : *list) {
    out.push_back(value_of(reader, key, item));
    if (!seen.insert(to_toml(read_value(key, out.back()))).second)
      reader.refuse(
          item, fmt::format("{} is to take the value {} twice; remove one", key.path, out.back()));
  }
  return out;
}

Draw draw_of(const Reader& reader, const Key& key, const toml::node& node) {
  const auto bad = [&]() {
    reader.refuse(node, fmt::format("{} needs one of {{log_uniform = [low, high]}}, {{uniform = "
                                    "[low, high]}}, {{choice = [..]}}, with low < high and, for "
                                    "log_uniform, 0 < low",
                                    key.path));
  };
  const toml::table* table = node.as_table();
  if (table == nullptr || table->size() != 1) bad();
  const std::string kind(table->begin()->first.str());
  const toml::node& values = table->begin()->second;
  if (kind == "choice")
    return {.kind = Draw::Kind::choice, .choices = list_of(reader, key, values)};
  const toml::array* ends = values.as_array();
  if ((kind != "uniform" && kind != "log_uniform") || ends == nullptr || ends->size() != 2) bad();
  const bool whole = key.type == KeyType::integer || key.type == KeyType::seed;
  if (key.type != KeyType::real && !whole)
    reader.refuse(node, fmt::format("{} is no number; write {{choice = [..]}}", key.path));
  const auto low = ends->get(0)->value<double>(), high = ends->get(1)->value<double>();
  if (!low || !high || !(*low < *high) || !std::isfinite(*high - *low)) bad();
  const bool log = kind == "log_uniform";
  if (log && !(*low > 0)) bad();
  return {log ? Draw::Kind::log_uniform : Draw::Kind::uniform, *low, *high, whole};
}

/// Reads {selector = value} or {selector = [values]}, all of which must hold.
std::map<std::string, std::vector<std::string>> condition_of(const Reader& reader,
                                                             const SweepSpec& spec,
                                                             const std::string& path,
                                                             const toml::node& node) {
  const auto draws = [&](const Round& round) { return round.keys.contains(path); };
  if (!spec.grid.contains(path) && std::ranges::none_of(spec.rounds, draws))
    reader.refuse(node, fmt::format("[when] has {}, which is not tried; give its values in [grid] "
                                    "or [random]",
                                    path));
  const toml::table* table = node.as_table();
  if (table == nullptr || table->empty())
    reader.refuse(
        node, fmt::format("[when] {} needs a condition; write {{\"section.key\" = value}}", path));
  std::map<std::string, std::vector<std::string>> out;
  for (const auto& [name, value] : *table) {
    const std::string selector(name.str());
    const Key* key = find_key(selector);
    if (key == nullptr)
      reader.refuse(value, fmt::format("[when] {} asks for an unknown key '{}'; {}", path,
                                       shortened(selector), unknown_key_hint(selector)));
    out[selector] = value.is_array() ? list_of(reader, *key, value)
                                     : std::vector<std::string>{value_of(reader, *key, value)};
  }
  return out;
}

Round round_of(const Reader& reader) {
  Round round;
  round.count = reader.integer("count", 0, 1, kMostDraws);
  if (round.count == 0) reader.refuse("[random] needs a count, how many points to draw");
  round.seed = static_cast<std::uint64_t>(
      reader.integer("seed", 1, 0, std::numeric_limits<std::int64_t>::max()));
  reader.config_keys({"count", "seed"},
                     [&](const std::string& path, const Key& key, const auto& node) {
                       round.keys[path] = draw_of(reader, key, node);
                     });
  return round;
}

void read_main(const Reader& reader, const std::filesystem::path& folder, SweepSpec& spec) {
  reader.only({"name", "config", "metric", "score"});
  spec.name = reader.text("name", spec.name);
  if (spec.name.empty() || spec.name.find('/') != std::string::npos || spec.name == "." ||
      spec.name == "..")
    reader.refuse("sweep.name names a folder; write one word");
  for (const std::string& config : reader.texts("config")) spec.configs.push_back(folder / config);
  spec.metric = reader.name<Metric>("metric", spec.metric,
                                    {Metric::test_accuracy, Metric::test_loss, Metric::train_loss});
  spec.over = reader.name<Over>("score", spec.over, {Over::last, Over::best, Over::mean});
}

/// Checks that a launcher starts something, and as many ranks as the sweep counts for a run.
void check_launcher(const Reader& reader, const Slots& slots) {
  if (slots.launcher.empty()) return;
  if (slots.launcher.find_first_not_of(" \t\r\n\f\v") == std::string::npos)
    reader.refuse("slots.launcher is blank; write a command, or leave it out");
  if (slots.ranks > 1 && slots.launcher.find("{ranks}") == std::string::npos)
    reader.refuse(
        fmt::format("slots.ranks = {} needs {{ranks}} in slots.launcher, which would "
                    "start one rank, e.g. \"mpirun -n {{ranks}}\"; leave one of them out",
                    slots.ranks));
}

Slots slots_of(const Reader& reader) {
  reader.only({"parallel", "ranks", "threads", "hosts", "launcher"});
  const auto number = [&](const char* key, std::int64_t fallback, int low, int high) {
    return static_cast<int>(reader.integer(key, fallback, low, high));
  };
  Slots slots;
  slots.hosts = reader.texts("hosts");
  slots.parallel = number("parallel", std::max<std::int64_t>(1, std::ssize(slots.hosts)), 1, 1024);
  slots.ranks = number("ranks", 1, 1, 65536);
  slots.threads = number("threads", 0, 0, 4096);
  slots.launcher = reader.text("launcher", "");
  if (!slots.hosts.empty() && slots.launcher.find("{host}") == std::string::npos)
    reader.refuse(
        "slots.hosts needs a slots.launcher with {host} in it, e.g. \"mpirun -n {ranks} --host "
        "{host}\"");
  check_launcher(reader, slots);
  return slots;
}

}  // namespace

std::string_view name_of(Metric metric) noexcept {
  return metric == Metric::test_accuracy ? "test_accuracy"
         : metric == Metric::test_loss   ? "test_loss"
                                         : "train_loss";
}

std::string_view name_of(Over over) noexcept {
  return over == Over::last ? "last" : over == Over::best ? "best" : "mean";
}

SweepSpec parse_sweep(std::string_view text, const std::string& source,
                      const std::filesystem::path& folder) {
  const toml::table table = parse_toml(text, source, "sweep");
  const Reader root(table, source, "");
  root.only({"sweep", "set", "grid", "random", "when", "halving", "slots"});
  SweepSpec spec;
  spec.name = std::filesystem::path(source).stem().string();
  for (const Reader& main : root.sections("sweep")) read_main(main, folder, spec);
  if (spec.configs.empty())
    throw InvalidArgument(fmt::format(
        "[sweep] {}: no configuration; write [sweep] and config = \"FILE.toml\"", source));
  for (const Reader& set : root.sections("set"))
    set.config_keys({}, [&](const std::string& path, const Key&, const toml::node& node) {
      spec.set[path] = override_text(node);
    });
  for (const Reader& grid : root.sections("grid"))
    grid.config_keys({}, [&](const std::string& path, const Key& key, const toml::node& node) {
      spec.grid[path] = list_of(grid, key, node);
    });
  for (const Reader& random : root.sections("random", true))
    spec.rounds.push_back(round_of(random));
  for (const Reader& when : root.sections("when"))
    when.config_keys({}, [&](const std::string& path, const Key&, const toml::node& node) {
      spec.when[path] = condition_of(when, spec, path, node);
    });
  for (const Reader& halving : root.sections("halving")) {
    halving.only({"first", "eta"});
    spec.halving =
        Halving{halving.integer("first", 1, 1, 1000000), halving.integer("eta", 3, 2, 1000)};
  }
  for (const Reader& slots : root.sections("slots")) spec.slots = slots_of(slots);
  return spec;
}

SweepSpec load_sweep(const std::filesystem::path& file) {
  return parse_sweep(read_toml_text(file, "sweep", "'dkfac sweep --help' shows one"), file.string(),
                     file.parent_path());
}

void add_settings(SweepSpec& spec, const std::vector<std::string>& set) {
  for (const std::string& text : set) {
    auto [key, value] = split_override(text);
    spec.set[key] = std::move(value);
  }
}

double score_of(const std::vector<EpochRecord>& done, std::int64_t epochs, Metric metric,
                Over over) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (epochs < 1 || std::ssize(done) < epochs) return kNone;
  const auto value = [&](std::int64_t i) {
    const EpochRecord& record = done[static_cast<std::size_t>(i)];
    return metric == Metric::test_accuracy ? record.test_accuracy
           : metric == Metric::test_loss   ? record.test_loss
                                           : record.train_loss;
  };
  if (over == Over::last) return value(epochs - 1);
  double best = kNone, sum = 0;
  for (std::int64_t i = 0; i < epochs; ++i) {
    const double x = value(i);
    sum += x;
    if (std::isnan(best) || (higher_is_better(metric) ? x > best : x < best)) best = x;
  }
  return over == Over::best ? best : sum / static_cast<double>(epochs);
}

}  // namespace dkfac::app
