#include <cmath>

#include "probe/configuration.h"

namespace dkfac::probe {

using C = Configuration;

namespace {

kfac::CurvatureSettings settings_of(const C& c) {
  const kfac::CurvatureOptions& o = c.curvature;
  return {.damping = o.damping,
          .statistics_interval = o.refresh.statistics_interval,
          .inverse_interval = o.refresh.inverse_interval,
          .micro_batches = o.statistics.micro_batches};
}
void lazy(C& c) {
  c.curvature.refresh.statistics_interval = 2, c.curvature.refresh.inverse_interval = 4;
}
void adaptive(C& c) {
  c.curvature.refresh.staleness = kfac::Staleness::adaptive;
  c.curvature.refresh.similarity = 0.5;
}
void spread(C& c) {
  c.curvature.refresh.inverse_interval = 4, c.curvature.refresh.stagger_inverses = true;
}
void ekfac(C& c) {
  c.curvature.inverse.method = kfac::InverseMethod::ekfac;
  c.curvature.refresh.inverse_interval = 4;
  c.curvature.distribution.grad_worker_fraction = 1;
}

void add_schedules(Table& t) {
  t.both("intervals", lazy);
  t.both("adaptive", adaptive);
  t.both("spread", spread);
  t.both("micro_batches", [](C& c) { c.curvature.statistics.micro_batches = 2; });
  t.both("drawn", [](C& c) { c.drawn = true, c.curvature.statistics.micro_batches = 2; });
  t.kfac("adaptive.bounded", [](C& c) {
    adaptive(c);
    c.curvature.refresh.max_interval = 3;
    c.curvature.statistics.new_weight = 1;
    c.curvature.statistics.norm_fisher = kfac::NormFisher::full;
  });
  t.kfac("adaptive.wire", [](C& c) {
    adaptive(c);
    c.curvature.communication.statistics_wire = c.curvature.statistics.operand = DType::f16;
  });
  t.both("spread.all_workers", [](C& c) {
    spread(c);
    c.curvature.distribution.grad_worker_fraction = 1;
  });
  // A damping that falls in every step, and intervals that grow.
  t.both("settings", [](C& c) {
    c.plan = [settings = settings_of(c)](StepPlan& p, int step) {
      p.curvature = settings;
      p.curvature->damping = 0.1 / (1 + step);
      p.curvature->statistics_interval = 1 + step / 8;
      p.curvature->inverse_interval = 1 + step / 4;
    };
  });
  t.both("settings.spread", [](C& c) {
    spread(c);
    c.plan = [settings = settings_of(c)](StepPlan& p, int step) {
      if (step != 11 && step != 18) return;
      p.curvature = settings;
      p.curvature->inverse_interval = step == 11 ? 6 : 3;
    };
  });
  // Like the phases of the program: larger batches, more micro-batches, other momentum and rates.
  t.every("phases", [](C& c) {
    c.plan = [settings = settings_of(c)](StepPlan& p, int step) {
      if (step < 10) return;
      const bool large = step < 20;
      p.batch = large ? 24 : 12;
      p.micro_batches = large ? 2 : 1;
      p.lr = large ? 0.1 : 0.01;
      p.momentum = large ? 0.8 : 0.5;
      p.curvature = settings;
      p.curvature->micro_batches = p.micro_batches;
      p.curvature->inverse_interval = large ? 2 : 3;
    };
  });
}

/// What is not to be counted, or is just barely.
void add_faults(Table& t) {
  using enum Fault;
  // In the first step, in one that would rebuild, in two in a row.
  const auto rejected = [](C& c, Fault fault) {
    c.plan = [fault](StepPlan& p, int step) {
      if (step == 0 || step == 8 || step == 16 || step == 17) p.fault = fault;
    };
  };
  t.every("rejected", [=](C& c) { rejected(c, gradient); });
  const std::pair<const char*, Fault> faults[] = {{"input", input},
                                                  {"grad_output", grad_output},
                                                  {"loss", loss},
                                                  {"loss_value", loss_value},
                                                  {"no_batch", no_batch}};
  for (const auto& [name, fault] : faults)
    t.both(std::string("rejected.") + name, [=, fault = fault](C& c) {
      lazy(c);
      rejected(c, fault);
    });
  t.both("rejected.adaptive", [=](C& c) {
    adaptive(c);
    c.curvature.statistics.operand = DType::f16;
    rejected(c, grad_output);
  });
  t.both("rejected.ekfac", [=](C& c) {
    ekfac(c);
    rejected(c, input);
  });

  // Everything in f16, and data that leave its range in some steps.
  const auto overflow = [](C& c) {
    c.curvature.communication.statistics_wire = c.curvature.statistics.operand = DType::f16;
    c.kfac.curvature.communication.gradient_wire = c.kfac.curvature.communication.weight_wire =
        DType::f16;
    c.sgd.communication.gradient_wire = c.lars.communication.gradient_wire = DType::f16;
    c.plan = [](StepPlan& p, int step) {
      p.loss_scale = 1024;
      if (step == 6) p.gradient_size = 1e6;
      if (step == 12) p.input_size = p.gradient_size = 1e5;
      if (step == 18) p.input_size = p.gradient_size = 1e-8;
    };
  };
  t.every("overflow", overflow);
  t.both("overflow.data", [=](C& c) {
    overflow(c);
    c.data = DType::f16;
  });
  t.kfac("saturated", [](C& c) {
    c.weight_size = 1e5, c.kfac.curvature.communication.weight_wire = DType::f16;
  });

  // Singular factors beside a damping that is lost in rounding: each stage of the fallback. The
  // clip bounds what comes of inverses that are all but infinite.
  for (const int digits : {8, 14, 20, 34, 60})
    for (const bool ends : {false, true})
      t.both("singular." + std::to_string(digits) + (ends ? ".ends" : ""), [=](C& c) {
        c.curvature.damping = std::pow(10, -digits);
        c.curvature.statistics.new_weight = 1;
        c.curvature.kl_clip = 1e-3;
        c.curvature.inverse.max_failed_refreshes = ends ? 3 : 100;
        c.plan = [](StepPlan& p, int step) { p.equal_columns = step % 5 > 2 || step > 20; };
      });
  t.both("singular.eigen", [](C& c) {
    c.curvature.damping = 1e-30;
    c.curvature.kl_clip = 1e-3;
    c.curvature.inverse.method = kfac::InverseMethod::eigen;
    c.plan = [](StepPlan& p, int step) { p.equal_columns = step % 2 == 1; };
  });
}

void add_restarts(Table& t) {
  const auto elsewhere = [device = t.device()](C& c) {
    c.restart = Restart{.ranks = 1 + c.ranks % 3, .device = device};
  };
  const auto saved = [&](const std::string& name, const Change& change) {
    t.both("saved" + name, [=](C& c) {
      change(c);
      elsewhere(c);
    });
  };
  t.every("saved", elsewhere);
  saved(".wires", [](C& c) {
    c.kfac.curvature.communication.gradient_wire = c.curvature.statistics.operand = DType::f16;
    c.kfac.curvature.communication.weight_wire = DType::bf16;
  });
  saved(".lazy", lazy);
  saved(".adaptive", adaptive);
  saved(".spread", spread);
  saved(".low_rank", [](C& c) { c.curvature.statistics.new_weight = 1; });
  t.both("saved.workers",
         [device = t.device()](C& c) {
           lazy(c);
           c.restart = Restart{.ranks = c.ranks, .device = device, .grad_worker_fraction = 1};
         },
         {.ranks = {2, 3}});
  t.both("saved.ekfac", [device = t.device()](C& c) {
    ekfac(c);
    c.restart = Restart{.ranks = 1 + c.ranks % 3, .device = device, .grad_worker_fraction = 1};
  });
  if (!t.device().is_cuda()) return;
  t.every("saved.from_host", [](C& c) {
    lazy(c);
    c.restart = Restart{.ranks = c.ranks, .device = c.device};
    c.device = Device::cpu();
  });
  t.every("saved.to_host", [](C& c) {
    lazy(c);
    c.restart = Restart{.ranks = c.ranks};
  });
}

}  // namespace

void add_courses(Table& t) {
  add_schedules(t);
  add_faults(t);
  add_restarts(t);
}

void Table::add(const std::string& name, Method method, const Change& change, const Axes& axes) {
  std::vector<Configuration> row;
  for (const DType dtype : axes.dtypes)
    for (const int ranks : axes.ranks) {
      Configuration c;
      c.name = name + (device_.is_cuda() ? "/device/" : "/host/") + std::string(name_of(dtype)) +
               "/" + std::to_string(ranks);
      c.method = method;
      c.ranks = ranks;
      c.device = device_;
      if (quick_) c.steps = 18;
      c.dtype = c.data = c.curvature.dtype = dtype;
      c.curvature.damping = 1e-2;
      c.lars.eta = 0.1;
      // Several buckets.
      c.curvature.communication.bucket_bytes = c.sgd.communication.bucket_bytes =
          c.lars.communication.bucket_bytes = 2048;
      change(c);
      row.push_back(std::move(c));
    }
  const std::size_t one = rows_++ % row.size();
  if (quick_) row = {row[one]};
  all_.insert(all_.end(), row.begin(), row.end());
}

}  // namespace dkfac::probe
