#include <memory>
#include <utility>

#include "dkfac/c/dkfac.h"

#include "c/calls.h"

namespace dkfac::c {
namespace {

dkfac_layer_params default_params() {
  const optim::LayerParams defaults;
  dkfac_layer_params params{};
  params.struct_size = sizeof params;
  params.weight_lr = defaults.weight_lr;
  params.bias_lr = defaults.bias_lr;
  params.bias_decay = defaults.bias_decay;
  return params;
}

optim::LayerParams layer_params(const dkfac_layer_params* given, const char* name) {
  const dkfac_layer_params p =
      known_fields(&required(given, name, "params"), default_params(), name, "dkfac_layer_params");
  return {.weight = view_of(&p.weight, name, "weight"),
          .bias = view_of(&p.bias, name, "bias"),
          .weight_grad = view_of(&p.weight_grad, name, "weight_grad"),
          .bias_grad = view_of(&p.bias_grad, name, "bias_grad"),
          .weight_lr = p.weight_lr,
          .bias_lr = p.bias_lr,
          .bias_decay = p.bias_decay};
}

}  // namespace
}  // namespace dkfac::c

using namespace dkfac;

void dkfac_layer_params_init(dkfac_layer_params* params, size_t struct_size) {
  c::write_fields(params, struct_size, c::default_params());
}

int dkfac_optimizer_create(dkfac_comm* comm, const dkfac_optimizer_options* options,
                           const dkfac_curvature_options* curvature,
                           const dkfac_context_options* context, dkfac_optimizer** out) {
  constexpr const char* kName = "dkfac_optimizer_create";
  return c::guarded([&] {
    dkfac_optimizer*& target = c::required(out, kName, "out");
    const c::Execution execution = c::execution(context, kName);
    std::unique_ptr<optim::Optimizer> made = c::make_optimizer(
        c::required(comm, kName, "comm").comm, options, curvature, execution, kName);
    optim::Optimizer& object = *made;
    target = new dkfac_optimizer{std::move(made), object, execution.device, {}};
  });
}

void dkfac_optimizer_destroy(dkfac_optimizer* object) { delete object; }

int dkfac_optimizer_add_layer(dkfac_optimizer* object, const char* name,
                              const dkfac_layer_spec* spec, const dkfac_layer_params* params,
                              int32_t* layer) {
  constexpr const char* kName = "dkfac_optimizer_add_layer";
  return c::guarded([&] {
    int32_t& id = c::required(layer, kName, "layer");
    const LayerId added =
        c::required(object, kName, "the object")
            .object.add_layer(&c::required(name, kName, "name"), c::layer_spec(spec, kName),
                              c::layer_params(params, kName));
    id = static_cast<int32_t>(added);
  });
}

int dkfac_optimizer_prepare(dkfac_optimizer* object) {
  return c::on_object(__func__, object, [](auto& o) { o.prepare(); });
}

int dkfac_optimizer_wants_input(const dkfac_optimizer* object, int32_t layer, int32_t* wants) {
  return c::wants_input(__func__, object, layer, wants);
}
int dkfac_optimizer_wants_grad_output(const dkfac_optimizer* object, int32_t layer,
                                      int32_t* wants) {
  return c::wants_grad_output(__func__, object, layer, wants);
}
int dkfac_optimizer_record_input(dkfac_optimizer* object, int32_t layer, const dkfac_tensor* input,
                                 const dkfac_record_scale* scale) {
  return c::record_input(__func__, object, layer, input, scale);
}
int dkfac_optimizer_record_grad_output(dkfac_optimizer* object, int32_t layer,
                                       const dkfac_tensor* grad_output,
                                       const dkfac_record_scale* scale) {
  return c::record_grad_output(__func__, object, layer, grad_output, scale);
}
int dkfac_optimizer_record_normalization(dkfac_optimizer* object, int32_t layer,
                                         const dkfac_tensor* x, const dkfac_tensor* mean,
                                         const dkfac_tensor* inv_std,
                                         const dkfac_tensor* grad_output,
                                         const dkfac_record_scale* scale) {
  return c::record_normalization(__func__, object, layer, x, mean, inv_std, grad_output, scale);
}

int dkfac_optimizer_record_sample_gradients(dkfac_optimizer* object, int32_t layer,
                                            const dkfac_tensor* gradients,
                                            const dkfac_record_scale* scale) {
  return c::record_sample_gradients(__func__, object, layer, gradients, scale);
}

int dkfac_optimizer_grads_ready(dkfac_optimizer* object, int32_t layer, void* stream,
                                const dkfac_record_scale* scale) {
  constexpr const char* kName = "dkfac_optimizer_grads_ready";
  return c::guarded([&] {
    dkfac_optimizer& optimizer = c::required(object, kName, "the object");
    optimizer.object.grads_ready(c::layer_id(layer), c::stream_on(optimizer.device, stream),
                                 c::record_scale(scale));
  });
}

int dkfac_optimizer_step(dkfac_optimizer* object, const dkfac_step_args* args, void* stream,
                         dkfac_step_report* report) {
  constexpr const char* kName = "dkfac_optimizer_step";
  return c::guarded([&] {
    dkfac_optimizer& optimizer = c::required(object, kName, "the object");
    c::check_report(report, kName);
    c::write_report(report, optimizer.object.step(c::step_args(args, kName),
                                                  c::stream_on(optimizer.device, stream)));
  });
}

int dkfac_optimizer_set_curvature(dkfac_optimizer* object,
                                  const dkfac_curvature_settings* settings) {
  return c::set_curvature(__func__, object, settings);
}
int dkfac_optimizer_read_factors(dkfac_optimizer* object, int32_t layer, dkfac_factors** out) {
  return c::read_factors(__func__, object, layer, out);
}
int dkfac_optimizer_visit_state(dkfac_optimizer* object, const dkfac_state_visitor* visitor) {
  return c::visit_state(__func__, object, visitor);
}
int dkfac_optimizer_describe(const dkfac_optimizer* object, const char** text) {
  return c::describe(__func__, object, text);
}
