#pragma once

#include <concepts>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "dkfac/core/gradients.h"
#include "dkfac/core/types.h"

/// Descriptions of the fields of options structs. for_each_field(options, visit) calls
/// visit(field, info), or visit(field, info, choices) for a field with named values. Validation,
/// the comparison over ranks, configuration keys and their documentation are derived from it. Each
/// list binds all members of its struct by name, so a list without a newly added field does not
/// compile.
namespace dkfac {

/// Interval of allowed numbers, which are finite. Open ends are excluded.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false, open_high = false;
  [[nodiscard]] bool contains(double x) const {  // False for a NaN.
    return (open_low ? x > low : x >= low) && (open_high ? x < high : x <= high);
  }
};
[[nodiscard]] std::string to_string(const Range& range);  ///< "in (0, 1]", ">= 1"

constexpr Range at_least(double low) { return {.low = low}; }
constexpr Range above(double low) { return {.low = low, .open_low = true}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }
constexpr Range from_to_below(double low, double high) {
  return {.low = low, .high = high, .open_high = true};
}
constexpr Range above_up_to(double low, double high) {
  return {.low = low, .high = high, .open_low = true};
}
/// Range of a count of type int.
constexpr Range count_from(int low) { return between(low, std::numeric_limits<int>::max()); }

/// Named value of an option.
template <class T>
struct NamedValue {
  std::string_view name;
  T value;
};
template <class T>
using NamedValues = std::span<const NamedValue<T>>;

/// Wire formats; "same" is the type of the computation.
inline constexpr NamedValue<std::optional<DType>> kWires[] = {
    {"same", std::nullopt}, {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}};

inline constexpr NamedValue<LossReduction> kLossReductions[] = {
    {"local_mean", LossReduction::local_mean},
    {"global_mean", LossReduction::global_mean},
    {"sum", LossReduction::sum}};

/// Description of a field beyond its type and default.
struct FieldInfo {
  std::string_view name;  ///< Name in messages: "refresh.staleness".
  /// One line of help for users of a program; empty if the program sets the value itself.
  std::string_view help = {};
  Range range = {};  ///< Allowed values of a number.
  /// The field is used only if the option `only` has the choice `is`.
  std::string_view only = {}, is = {};
  std::string_view key = {};  ///< Configuration key, if it is not the name of the member.
  bool agreed = true;         ///< Whether all ranks must have the same value.
};

/// Returns the configuration key of a field.
constexpr std::string_view key_of(const FieldInfo& info) {
  return info.key.empty() ? info.name.substr(info.name.rfind('.') + 1) : info.key;
}

/// Visitor for for_each_field() made from a generic lambda, which cannot accept a FieldInfo as a
/// braced list.
template <class Call>
struct FieldVisit {
  Call call;
  void operator()(auto& field, const FieldInfo& info) const { call(field, info); }
  template <class T>
  void operator()(T& field, const FieldInfo& info,
                  NamedValues<std::remove_const_t<T>> choices) const {
    call(field, info, choices);
  }
};
template <class Call>
FieldVisit(Call) -> FieldVisit<Call>;

/// Whether T is Options or const Options.
template <class T, class Options>
concept OptionsOf = std::same_as<std::remove_const_t<T>, Options>;

/// Fields that all optimizers share; the wire formats of statistics and weights are K-FAC's.
template <OptionsOf<CommunicationOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [overlap, bucket_bytes, gradient_wire, statistics_wire, weight_wire] = options;
  visit(overlap, {"communication.overlap", "communicate while forward and backward run"});
  visit(bucket_bytes, {"communication.bucket_bytes",
                       "a reduction starts once about this much is waiting", at_least(1)});
  visit(gradient_wire,
        {"communication.gradient_wire", "type in which gradients travel; sums are taken in f32"},
        NamedValues<std::optional<DType>>(kWires));
}

/// Visitor that throws InvalidArgument for a number out of range or a choice without a name. The
/// message names options, field, value and the allowed values.
class FieldChecks {
 public:
  explicit FieldChecks(std::string_view options) : options_(options) {}  ///< "sgd options"

  template <class T>
  void operator()(const T& field, const FieldInfo& info) const {
    if constexpr (std::is_arithmetic_v<T> && !std::same_as<T, bool>)
      check_number(static_cast<double>(field), info);
  }
  template <class T>
  void operator()(const T& field, const FieldInfo& info, NamedValues<T> choices) const {
    std::string names;
    for (const NamedValue<T>& choice : choices) {
      if (choice.value == field) return;
      (names += names.empty() ? "" : ", ") += name_in_code(choice);
    }
    refuse_choice(info, shown(field), names);
  }

 private:
  template <class T>
  static std::string_view name_in_code(const NamedValue<T>& choice) {
    if constexpr (requires { choice.value.has_value(); })
      if (!choice.value) return "unset";
    return choice.name;
  }
  template <class T>
  static std::string shown(const T& field) {
    if constexpr (std::is_same_v<T, DType>)
      return std::string(name_of(field));
    else if constexpr (std::is_enum_v<T>)
      return std::to_string(static_cast<int>(field));
    else
      return field ? shown(*field) : "unset";
  }
  void check_number(double value, const FieldInfo& info) const;
  [[noreturn]] void refuse_choice(const FieldInfo& info, const std::string& value,
                                  const std::string& names) const;
  std::string_view options_;
};

/// Visitor that collects the exact values of the fields on which ranks have to agree, one per line.
class FieldText {
 public:
  template <class T>
  void operator()(const T& field, const FieldInfo& info) {
    if constexpr (std::is_arithmetic_v<T>)
      add(info, static_cast<double>(field));
    else
      add(info, std::string_view(field));
  }
  template <class T>
  void operator()(const T& field, const FieldInfo& info, NamedValues<T> choices) {
    for (const NamedValue<T>& choice : choices)
      if (choice.value == field) return add(info, choice.name);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void add(const FieldInfo& info, double value);
  void add(const FieldInfo& info, std::string_view value);
  std::string text_;
};

}  // namespace dkfac
