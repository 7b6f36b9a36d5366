#include "dkfac/kfac/options.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

namespace dkfac::kfac {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(CurvatureOptions, AcceptsTheDefaultsAndTheEndsOfEveryRange) {
  EXPECT_NO_THROW(CurvatureOptions{}.validate());
  CurvatureOptions o;
  o.damping = 1e-12;
  o.bn_damping = 1e6;
  o.new_weight = 1;
  o.max_failed_refreshes = 0;
  o.bucket_bytes = 1;
  o.dtype = DType::f64;
  for (const DType operand : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    o.operand = operand;
    EXPECT_NO_THROW(o.validate()) << operand;
  }
}

TEST(CurvatureOptions, NamesTheFieldThatIsOutOfRange) {
  struct Case {
    std::string field;
    std::function<void(CurvatureOptions&)> change;
  };
  const std::vector<Case> cases = {
      {"damping is 0", [](auto& o) { o.damping = 0; }},
      {"damping is nan", [](auto& o) { o.damping = kNan; }},
      {"damping is inf", [](auto& o) { o.damping = kInfinity; }},
      {"bn_damping is -1", [](auto& o) { o.bn_damping = -1; }},
      {"new_weight is 0", [](auto& o) { o.new_weight = 0; }},
      {"new_weight is 1.5", [](auto& o) { o.new_weight = 1.5; }},
      {"new_weight is nan", [](auto& o) { o.new_weight = kNan; }},
      {"statistics_interval is 0", [](auto& o) { o.statistics_interval = 0; }},
      {"inverse_interval is -2", [](auto& o) { o.inverse_interval = -2; }},
      {"micro_batches is 0", [](auto& o) { o.micro_batches = 0; }},
      {"dtype is bf16", [](auto& o) { o.dtype = DType::bf16; }},
      {"operand is i32", [](auto& o) { o.operand = DType::i32; }},
      {"operand is f64", [](auto& o) { o.operand = DType::f64; }},  // but dtype is f32
      {"max_failed_refreshes is -1", [](auto& o) { o.max_failed_refreshes = -1; }},
      {"bucket_bytes is 0", [](auto& o) { o.bucket_bytes = 0; }},
  };
  for (const Case& c : cases) {
    CurvatureOptions o;
    c.change(o);
    std::string message = "accepted";
    try {
      o.validate();
    } catch (const InvalidArgument& e) {
      message = e.what();
    }
    EXPECT_NE(message.find(c.field), std::string::npos) << "for " << c.field << ": " << message;
  }
}

}  // namespace
}  // namespace dkfac::kfac
