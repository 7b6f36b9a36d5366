#include "core/shared/registration.h"

#include <cstdio>

#include "dkfac/core/error.h"

namespace dkfac {
namespace {

/// Checks that a weight and a bias share. A view without elements passes.
void check_values(const Caller& caller, const char* what, ConstTensorView view, Device device) {
  if (view.numel() == 0) return;
  check_memory(caller, what, view);
  check_contiguous(caller, what, view);
  DKFAC_CHECK(view.dtype() == DType::f32 || view.dtype() == DType::f64, caller, what, " is ",
              view.dtype(), "; it must be f32 or f64, so convert it first");
  if (view.device() == device) return;
  throw DeviceError(detail::concat(caller, what, " is on ", view.device(),
                                   ", while this object works on ", device,
                                   "; make it there, or the object for that device"));
}

}  // namespace

void check_weight(const Caller& caller, const char* what, const LayerSpec& spec,
                  ConstTensorView view, Device device) {
  const std::int64_t numel = weight_numel(spec);
  const Shape whole = weight_shape(spec), flat{numel}, given = view.shape();
  const bool is_kernel = std::holds_alternative<Conv2dSpec>(spec);
  const Shape rows = is_kernel ? Shape{whole[0], numel / whole[0]} : whole;
  const bool any_shape = numel == 0 || std::holds_alternative<PlainSpec>(spec);
  DKFAC_CHECK(any_shape ? view.numel() == numel : given == whole || given == rows || given == flat,
              caller, what, " has shape ", given, "; ", describe(spec), " needs ", whole,
              is_kernel ? detail::concat(", ", rows) : "",
              whole == flat ? "" : detail::concat(" or, in the same order, ", flat));
  check_values(caller, what, view, device);
}

void check_bias(const Caller& caller, const char* what, const LayerSpec& spec, ConstTensorView view,
                Device device) {
  const std::int64_t numel = bias_numel(spec);
  const bool any_shape = numel == 0 || std::holds_alternative<PlainSpec>(spec);
  DKFAC_CHECK(any_shape ? view.numel() == numel : view.shape() == Shape{numel}, caller, what,
              " has shape ", view.shape(), "; ", describe(spec), " needs ", Shape{numel});
  check_values(caller, what, view, device);
}

void check_new_name(const std::string& name, bool exists) {
  DKFAC_CHECK(!name.empty(), "[add_layer] a layer has an empty name; names appear in messages");
  DKFAC_CHECK(!exists, "[add_layer] layer '", name, "' exists already; names must differ");
}

std::string registration_line(const std::string& name, const LayerSpec& spec) {
  std::string rows;
  const auto say = [&rows](const auto& s) {
    rows = detail::concat(", max_rows ", s.max_rows, " of ", s.sample_rows);
  };
  if (const auto* linear = std::get_if<LinearSpec>(&spec)) say(*linear);
  if (const auto* conv = std::get_if<Conv2dSpec>(&spec)) say(*conv);
  return detail::concat(name, ": ", describe(spec), ", ", weight_numel(spec), " + ",
                        bias_numel(spec), rows, '\n');
}

std::string exact(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace dkfac
