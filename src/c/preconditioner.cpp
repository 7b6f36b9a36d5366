#include <memory>

#include "dkfac/c/dkfac.h"

#include "c/calls.h"

using namespace dkfac;

int dkfac_preconditioner_create(dkfac_comm* comm, const dkfac_curvature_options* options,
                                const dkfac_context_options* context, dkfac_preconditioner** out) {
  constexpr const char* kName = "dkfac_preconditioner_create";
  return c::guarded([&] {
    dkfac_preconditioner*& target = c::required(out, kName, "out");
    const c::Execution execution = c::execution(context, kName);
    target = std::make_unique<dkfac_preconditioner>(
                 dkfac_preconditioner{
                     .object = kfac::Preconditioner(c::required(comm, kName, "comm").comm,
                                                    c::curvature_options(options, kName),
                                                    execution.device, execution.options),
                     .device = execution.device,
                     .grads = {},
                     .text = {}})
                 .release();
  });
}

void dkfac_preconditioner_destroy(dkfac_preconditioner* object) { delete object; }

int dkfac_preconditioner_add_layer(dkfac_preconditioner* object, const char* name,
                                   const dkfac_layer_spec* spec, int32_t* layer) {
  constexpr const char* kName = "dkfac_preconditioner_add_layer";
  return c::guarded([&] {
    int32_t& id = c::required(layer, kName, "layer");
    const LayerId added =
        c::required(object, kName, "the object")
            .object.add_layer(&c::required(name, kName, "name"), c::layer_spec(spec, kName));
    id = static_cast<int32_t>(added);
  });
}

int dkfac_preconditioner_keep_direction(dkfac_preconditioner* object, int32_t layer) {
  return c::on_object(__func__, object, [&](auto& o) { o.keep_direction(c::layer_id(layer)); });
}
int dkfac_preconditioner_prepare(dkfac_preconditioner* object) {
  return c::on_object(__func__, object, [](auto& o) { o.prepare(); });
}

int dkfac_preconditioner_wants_input(const dkfac_preconditioner* object, int32_t layer,
                                     int32_t* wants) {
  return c::wants_input(__func__, object, layer, wants);
}
int dkfac_preconditioner_wants_grad_output(const dkfac_preconditioner* object, int32_t layer,
                                           int32_t* wants) {
  return c::wants_grad_output(__func__, object, layer, wants);
}
int dkfac_preconditioner_record_input(dkfac_preconditioner* object, int32_t layer,
                                      const dkfac_tensor* input, const dkfac_record_scale* scale) {
  return c::record_input(__func__, object, layer, input, scale);
}
int dkfac_preconditioner_record_grad_output(dkfac_preconditioner* object, int32_t layer,
                                            const dkfac_tensor* grad_output,
                                            const dkfac_record_scale* scale) {
  return c::record_grad_output(__func__, object, layer, grad_output, scale);
}
int dkfac_preconditioner_record_normalization(dkfac_preconditioner* object, int32_t layer,
                                              const dkfac_tensor* x, const dkfac_tensor* mean,
                                              const dkfac_tensor* inv_std,
                                              const dkfac_tensor* grad_output,
                                              const dkfac_record_scale* scale) {
  return c::record_normalization(__func__, object, layer, x, mean, inv_std, grad_output, scale);
}

int dkfac_preconditioner_record_sample_gradients(dkfac_preconditioner* object, int32_t layer,
                                                 const dkfac_tensor* gradients,
                                                 const dkfac_record_scale* scale) {
  return c::record_sample_gradients(__func__, object, layer, gradients, scale);
}

int dkfac_preconditioner_step(dkfac_preconditioner* object, const dkfac_layer_grad* grads,
                              int64_t count, const dkfac_step_args* args,
                              dkfac_step_report* report) {
  constexpr const char* kName = "dkfac_preconditioner_step";
  return c::guarded([&] {
    dkfac_preconditioner& p = c::required(object, kName, "the object");
    c::check_report(report, kName);
    DKFAC_CHECK(count >= 0 && (count == 0 || grads != nullptr), "[", kName, "] count is ", count,
                grads == nullptr ? " and grads is null" : "");
    Stream stream = c::stream_on(p.device, nullptr);
    p.grads.clear();
    for (const dkfac_layer_grad& grad : std::span(grads, static_cast<std::size_t>(count))) {
      p.grads.push_back({c::layer_id(grad.layer), c::view_of(&grad.weight, kName, "a weight"),
                         c::view_of(&grad.bias, kName, "a bias")});
      if (grad.weight.data != nullptr || grad.bias.data != nullptr)
        stream = c::stream_of(grad.weight.data != nullptr ? grad.weight : grad.bias, kName);
    }
    p.object.count_own(c::own_seconds(args, kName));
    c::write_report(report, p.object.step(p.grads, stream, c::step_args(args, kName)));
  });
}

int dkfac_preconditioner_set_rates(dkfac_preconditioner* object, int32_t layer, double weight_lr,
                                   double bias_lr) {
  return c::on_object(__func__, object,
                      [&](auto& o) { o.set_rates(c::layer_id(layer), weight_lr, bias_lr); });
}
int dkfac_preconditioner_set_curvature(dkfac_preconditioner* object,
                                       const dkfac_curvature_settings* settings) {
  return c::set_curvature(__func__, object, settings);
}
int dkfac_preconditioner_read_factors(dkfac_preconditioner* object, int32_t layer,
                                      dkfac_factors** out) {
  return c::read_factors(__func__, object, layer, out);
}
int dkfac_preconditioner_visit_state(dkfac_preconditioner* object,
                                     const dkfac_state_visitor* visitor) {
  return c::visit_state(__func__, object, visitor);
}
int dkfac_preconditioner_describe(const dkfac_preconditioner* object, const char** text) {
  return c::describe(__func__, object, text);
}
int dkfac_preconditioner_notice(const dkfac_preconditioner* object, const char** text) {
  return c::keep_text(__func__, object, text, [](const auto& o) { return o.notice(); });
}
