#include "optim/shared/registry.h"

#include <limits>
#include <map>
#include <set>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/error.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"
#include "support/saved_state.h"

namespace dkfac::optim {
namespace {

using dkfac::testing::natural_gradient;

/// Calls check(entry, options) for each optimizer with its defaults.
template <class Check>
void for_each_default(const Check& check) {
  OptimizerOptions all;
  for_each_optimizer(all, check);
}

template <class Options>
std::string text_of(const Options& options) {
  FieldText text;
  for_each_option(options, text);
  return text.text();
}

void change(bool& field) { field = !field; }
void change(std::string& field) { field += "x"; }
void change(auto& field) { field += 1; }
template <class T>
void change(T& field, NamedValues<T> choices) {
  field = choices[choices[0].value == field ? 1 : 0].value;
}

template <class Options>
std::string refusal_of(const Options& options) {
  try {
    options.validate();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Registry, NamesEachOptimizerAndFieldOnce) {
  std::set<std::string> names;
  for_each_default([&](const auto& entry, auto& options) {
    EXPECT_TRUE(names.emplace(entry.name).second) << entry.name;
    EXPECT_EQ(name_of(entry.type), entry.name);
    EXPECT_EQ(entry.make(comm::make_self(), options, Device::cpu(), {})->name(), entry.name);
    std::set<std::string> fields;
    for_each_field(options, FieldVisit{[&](auto&, const FieldInfo& info, auto...) {
                     EXPECT_TRUE(fields.emplace(info.name).second) << entry.name << info.name;
                   }});
  });
  EXPECT_EQ(names.size(), 5U);
}

TEST(Registry, ComparesEveryFieldThatRanksHaveToAgreeOn) {
  for_each_default([&](const auto& entry, auto& options) {
    const std::string same = text_of(options);
    int apart = 0;
    for_each_option(options, FieldVisit{[&](auto& field, const FieldInfo& info, auto... choices) {
                      const auto before = field;
                      change(field, choices...);
                      EXPECT_EQ(text_of(options) != same, info.agreed) << entry.name << info.name;
                      field = before;
                      apart += info.agreed ? 0 : 1;
                    }});
    // failure_folder and records_valid_until_step: paths and streams of one rank.
    EXPECT_EQ(apart, entry.type == OptimizerType::kfac ? 2 : 0);
  });
}

TEST(Registry, RefusesWhatIsOutOfRangeByName) {
  int numbers = 0, choices_seen = 0;
  for_each_default([&](const auto& entry, auto& options) {
    EXPECT_EQ(refusal_of(options), "accepted");
    for_each_option(
        options, FieldVisit{[&](auto& field, const FieldInfo& info, auto... choices) {
          using T = std::remove_reference_t<decltype(field)>;
          const T before = field;
          const std::string named = std::string(info.name) + " is ";
          if constexpr (sizeof...(choices) > 0) {
            ++choices_seen;
            if constexpr (std::is_enum_v<T>)
              field = static_cast<T>(99);
            else
              field = DType::i32;
            EXPECT_NE(refusal_of(options).find(named), std::string::npos) << entry.name << named;
          } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
            ++numbers;
            field = static_cast<T>(info.range.low - 1);
            EXPECT_NE(refusal_of(options).find(named), std::string::npos) << entry.name << named;
            if constexpr (std::is_floating_point_v<T>) {
              field = std::numeric_limits<T>::quiet_NaN();
              EXPECT_NE(refusal_of(options).find(named), std::string::npos) << entry.name << named;
            }
          }
          field = before;
        }});
  });
  EXPECT_GT(numbers, 25);
  EXPECT_GT(choices_seen, 15);
}

TEST(Registry, LeavesTheWiresOfKfacToKfac) {
  for_each_default([](const auto& entry, auto& options) {
    if constexpr (requires { options.communication; }) {
      options.communication.weight_wire = DType::f16;
      EXPECT_NE(refusal_of(options).find("are for K-FAC"), std::string::npos) << entry.name;
      options.communication = {.statistics_wire = DType::f32};
      EXPECT_NE(refusal_of(options).find("are for K-FAC"), std::string::npos) << entry.name;
    }
  });
  kfac::CurvatureOptions curvature = natural_gradient();
  curvature.communication.gradient_wire = DType::f16;
  EXPECT_NO_THROW(curvature.validate());
  EXPECT_THROW(kfac::Preconditioner(comm::make_self(), curvature), InvalidArgument);
}

TEST(Registry, GivesOneKeyOneMeaning) {
  std::map<std::string, std::string> meanings;
  for_each_default([&](const auto& entry, auto& options) {
    for_each_option(options, FieldVisit{[&](auto& field, const FieldInfo& info, auto...) {
                      if (info.help.empty()) return;
                      const std::string key(key_of(info));
                      const std::string meaning = detail::concat(info.help, to_string(info.range),
                                                                 info.only, info.is, sizeof field);
                      EXPECT_EQ(meanings.try_emplace(key, meaning).first->second, meaning)
                          << entry.name << ' ' << key;
                    }});
  });
}

TEST(Registry, SaysHowManyNumbersAnOptimizerKeepsForEachParameter) {
  for_each_default([&](const auto& entry, auto& options) {
    const auto optimizer = entry.make(comm::make_self(), options, Device::cpu(), {});
    Context ctx;
    Tensor values = Tensor::zeros(ctx, {4, 3}, DType::f32);
    Tensor grads = Tensor::zeros(ctx, {4, 3}, DType::f32);
    const LayerId layer = optimizer->add_layer("fc", LinearSpec{.in = 3, .out = 4, .bias = false},
                                               {.weight = values, .weight_grad = grads});
    static_cast<void>(layer);
    optimizer->prepare();
    testing::Saver saver;
    optimizer->visit_state(saver);
    std::size_t bytes = 0;
    for (const auto& [name, value] : saver.state)
      if (name.ends_with(".velocity") || name.ends_with("_moment")) bytes += value.bytes.size();
    EXPECT_EQ(bytes, static_cast<std::size_t>(entry.states) * values.view().bytes()) << entry.name;
  });
}

TEST(Registry, RefusesAParameterThatAnotherLayerHas) {
  for_each_default([&](const auto& entry, auto& options) {
    const auto optimizer = entry.make(comm::make_self(), options, Device::cpu(), {});
    std::vector<double> w(6), g(6);  // The gradients of a network may take turns in one buffer.
    const auto add = [&](const char* name, std::int64_t from, std::int64_t to) {
      return optimizer->add_layer(name, PlainSpec{.weight = to - from},
                                  {.weight = view_of(w.data() + from, {to - from}),
                                   .weight_grad = view_of(g.data(), {to - from})});
    };
    (void)add("a", 0, 4);
    EXPECT_THROW((void)add("tied", 0, 4), InvalidArgument) << entry.name;
    EXPECT_THROW((void)add("overlapping", 3, 6), InvalidArgument) << entry.name;
    EXPECT_EQ(static_cast<int>(add("b", 4, 6)), 1) << entry.name;
  });
}

TEST(Registry, AStepThatIsRefusedDoesNotCount) {
  for_each_default([&](const auto& entry, auto& options) {
    const auto optimizer = entry.make(comm::make_self(), options, Device::cpu(), {});
    Context ctx;
    Tensor values = Tensor::zeros(ctx, {4, 3}), grads = Tensor::zeros(ctx, {4, 3});
    const LayerId layer = optimizer->add_layer("fc", LinearSpec{.in = 3, .out = 4, .bias = false},
                                               {.weight = values, .weight_grad = grads});
    optimizer->prepare();
    EXPECT_THROW((void)optimizer->step({.lr = 0.1}), InvalidArgument) << entry.name;
    const Tensor rows = Tensor::zeros(ctx, {5, 3}), outputs = Tensor::zeros(ctx, {5, 4});
    optimizer->record_input(layer, rows);
    optimizer->record_grad_output(layer, outputs);
    EXPECT_THROW((void)optimizer->step({.lr = 0.1}), InvalidArgument) << entry.name;
    optimizer->grads_ready(layer);
    EXPECT_EQ(optimizer->step({.lr = 0.1}).step, 1) << entry.name;
  });
}

}  // namespace
}  // namespace dkfac::optim
