#include "dkfac/kfac/options.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/not_finite.h"

namespace dkfac::kfac {
namespace {

CurvatureOptions& adaptive(CurvatureOptions& o) {
  o.refresh.staleness = Staleness::adaptive;
  return o;
}

TEST(CurvatureOptions, AcceptsTheDefaultsAndTheEndsOfEveryRange) {
  EXPECT_NO_THROW(CurvatureOptions{}.validate());
  CurvatureOptions o;
  o.damping = 1e-12;
  o.norm_damping = 1e6;
  o.statistics.new_weight = 1;
  o.inverse.max_failed_refreshes = 0;
  o.communication.bucket_bytes = 1;
  o.dtype = DType::f64;
  for (const DType operand : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    o.statistics.operand = operand;
    EXPECT_NO_THROW(o.validate()) << operand;
  }
  o.refresh.similarity = o.distribution.grad_worker_fraction = 0;
  for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
    o.communication.statistics_wire = wire;
    EXPECT_NO_THROW(adaptive(o).validate()) << wire;
  }
  o.distribution.grad_worker_fraction = o.statistics.fraction = 1;
  EXPECT_NO_THROW(o.validate());
}

TEST(CurvatureOptions, TakesLowRankForAWishThatOtherOptionsMayOverride) {
  CurvatureOptions o;
  EXPECT_TRUE(o.statistics.low_rank);
  o.inverse.method = InverseMethod::ekfac;
  o.refresh.stagger_inverses = true;
  o.refresh.inverse_interval = 7;
  EXPECT_NO_THROW(o.validate());
}

TEST(CurvatureOptions, NamesTheFieldThatIsOutOfRange) {
  struct Case {
    std::string field;
    std::function<void(CurvatureOptions&)> change;
  };
  const std::vector<Case> cases = {
      {"damping is -1", [](auto& o) { o.damping = -1; }},
      {"relative_damping is 0", [](auto& o) { o.relative_damping = 0; }},
      {"damping is 0.5 and relative_damping 0.2",
       [](auto& o) {
         o.damping = 0.5;
         o.relative_damping = 0.2;
       }},
      {"damping is nan", [](auto& o) { o.damping = kNan; }},
      {"damping is inf", [](auto& o) { o.damping = kInf; }},
      {"norm_damping is -1", [](auto& o) { o.norm_damping = -1; }},
      {"statistics.new_weight is 0", [](auto& o) { o.statistics.new_weight = 0; }},
      {"statistics.new_weight is 1.5", [](auto& o) { o.statistics.new_weight = 1.5; }},
      {"statistics.new_weight is nan", [](auto& o) { o.statistics.new_weight = kNan; }},
      {"refresh.statistics_interval is -1", [](auto& o) { o.refresh.statistics_interval = -1; }},
      {"refresh.inverse_interval is -2", [](auto& o) { o.refresh.inverse_interval = -2; }},
      {"statistics.micro_batches is 0", [](auto& o) { o.statistics.micro_batches = 0; }},
      {"dtype is bf16", [](auto& o) { o.dtype = DType::bf16; }},
      {"statistics.operand is i32", [](auto& o) { o.statistics.operand = DType::i32; }},
      {"statistics.operand is f64",
       [](auto& o) { o.statistics.operand = DType::f64; }},  // but dtype is f32
      {"inverse.max_failed_refreshes is -1", [](auto& o) { o.inverse.max_failed_refreshes = -1; }},
      {"communication.bucket_bytes is 0", [](auto& o) { o.communication.bucket_bytes = 0; }},
      {"refresh.similarity is -0.1", [](auto& o) { o.refresh.similarity = -0.1; }},
      {"refresh.similarity is nan", [](auto& o) { o.refresh.similarity = kNan; }},
      {"refresh.max_interval is -1", [](auto& o) { o.refresh.max_interval = -1; }},
      {"statistics.fraction is 0", [](auto& o) { o.statistics.fraction = 0; }},
      {"statistics.fraction is 1.25", [](auto& o) { o.statistics.fraction = 1.25; }},
      {"kl_clip is -1", [](auto& o) { o.kl_clip = -1; }},
      {"kl_clip is inf", [](auto& o) { o.kl_clip = kInf; }},
      {"distribution.grad_worker_fraction is 1.5",
       [](auto& o) { o.distribution.grad_worker_fraction = 1.5; }},
      {"distribution.grad_worker_fraction is nan",
       [](auto& o) { o.distribution.grad_worker_fraction = kNan; }},
      {"communication.statistics_wire is f64",
       [](auto& o) { o.communication.statistics_wire = DType::f64; }},
      {"communication.statistics_wire is i32",
       [](auto& o) { o.communication.statistics_wire = DType::i32; }},
      {"damping_split is set with inverse.method eigen",
       [](auto& o) {
         o.inverse.method = InverseMethod::eigen;
         o.damping_split = DampingSplit::equal_traces;
       }},
      {"damping_split is set with inverse.method ekfac",
       [](auto& o) {
         o.inverse.method = InverseMethod::ekfac;
         o.refresh.inverse_interval = 2;
         o.damping_split = DampingSplit::constant;
       }},
      {"damping is 1e-50",
       [](auto& o) {
         o.inverse.method = InverseMethod::eigen;
         o.damping = 1e-50;
       }},
      {"distribution.split_wide is set with inverse.method eigen",
       [](auto& o) {
         o.inverse.method = InverseMethod::eigen;
         o.distribution.split_wide = true;
       }},
      {"refresh.delay_inverses is set with inverse.method ekfac",
       [](auto& o) {
         o.inverse.method = InverseMethod::ekfac;
         o.refresh.inverse_interval = 2;
         o.refresh.delay_inverses = true;
       }},
      // What the adaptive rule does not support.
      {"refresh.statistics_interval is 2",
       [](auto& o) { adaptive(o).refresh.statistics_interval = 2; }},
      {"refresh.inverse_interval is 3", [](auto& o) { adaptive(o).refresh.inverse_interval = 3; }},
      {"refresh.stagger_inverses", [](auto& o) { adaptive(o).refresh.stagger_inverses = true; }},
      {"inverse.method is ekfac",
       [](auto& o) { adaptive(o).inverse.method = InverseMethod::ekfac; }},
      // Scales that every rebuild forgets before they are used again.
      {"use eigen",
       [](auto& o) {
         o.inverse.method = InverseMethod::ekfac;
         o.refresh.statistics_interval = 0;  // At least 1.
         o.refresh.inverse_interval = 1;
       }},
      {"refresh.inverse_interval is 3",
       [](auto& o) {
         o.inverse.method = InverseMethod::ekfac;
         o.refresh.statistics_interval = o.refresh.inverse_interval = 3;
       }},
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
