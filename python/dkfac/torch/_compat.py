"""The interface of kfac-pytorch: KFACPreconditioner with its arguments, enumerations, properties and scheduler."""
import enum
import logging

import torch

from .. import _structs as c
from .._library import InvalidArgument, integer, real
from . import _checks
from ._model import ALL_KINDS, ModelPreconditioner

_logger = logging.getLogger(__name__)


class AllreduceMethod(enum.Enum):
    ALLREDUCE = 1
    ALLREDUCE_BUCKETED = 2


class AssignmentStrategy(enum.Enum):
    COMPUTE = 1
    MEMORY = 2


class ComputeMethod(enum.Enum):
    EIGEN = 1
    INVERSE = 2


class DistributedStrategy(enum.Enum):
    COMM_OPT = 1
    MEM_OPT = 2
    HYBRID_OPT = 3


def _member(kind, name, value):
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    raise ValueError(f"{name} is {value!r}; it must be one of " + ", ".join(kind.__members__))


def peer_scaling(layer, positions):
    """kfac-pytorch averages both factors over the rows of the batch, gradients of the reduced loss as they come:
    G = 1/(N P) sum g g'. Convolutions divide inputs and gradients by the positions P before that. Here
    A = 1/(a N P) sum a a' and G = 1/N sum (g / s)(g / s)'."""
    if layer.kind == c.CONV2D:
        return positions * positions, positions ** 1.5
    return 1, positions ** 0.5


class KFACPreconditioner(ModelPreconditioner):
    """K-FAC with the constructor and the methods of kfac-pytorch: call step() between backward and optimizer.step().

    damping_scale: "kfac-pytorch" (default) scales factors, and with them the damping, as that library does, and
        preconditions Linear, Conv1d and Conv2d layers. "dkfac" is the scale of attach(), for all kinds of layers.
    factor_update_steps, inv_update_steps, damping, kl_clip, lr: a number, or a callable of the step.
    lr: also the torch.optim.Optimizer itself, whose groups may have rates of their own, which the KL clip then heeds.
    kl_clip: None, or a callable that returns 0, clips nothing.
    factor_decay: a number, or a callable whose first value is kept.
    grad_worker_fraction: a fraction, or a DistributedStrategy.
    Arguments without effect here are accepted, and listed by `without_effect`: see docs/pytorch.md.
    """

    def __init__(self, model, *, factor_update_steps=1, inv_update_steps=1, damping=0.001, factor_decay=0.95,
                 kl_clip=0.001, lr=0.1, accumulation_steps=1, allreduce_bucket_cap_mb=25.0,
                 assignment_strategy=AssignmentStrategy.COMPUTE, colocate_factors=True,
                 compute_method=ComputeMethod.EIGEN, compute_eigenvalue_outer_product=True,
                 grad_worker_fraction=DistributedStrategy.COMM_OPT, symmetry_aware=False, grad_scaler=None,
                 factor_dtype=None, inv_dtype=torch.float32, skip_layers=None, update_factors_in_hook=True,
                 loglevel=logging.DEBUG, damping_scale="kfac-pytorch", comm=None, **options):
        values = {"factor_update_steps": factor_update_steps, "inv_update_steps": inv_update_steps,
                  "damping": damping, "factor_decay": factor_decay, "kl_clip": kl_clip, "lr": lr}
        self._values = values
        self._steps = 0
        self._check(values, accumulation_steps)
        if damping_scale not in ("kfac-pytorch", "dkfac"):
            raise ValueError(f"damping_scale is {damping_scale!r}; it must be 'kfac-pytorch' or 'dkfac'")
        self.damping_scale = damping_scale
        self.compute_method = _member(ComputeMethod, "compute_method", compute_method)
        self.assignment_strategy = _member(AssignmentStrategy, "assignment_strategy", assignment_strategy)
        self._defaults = {"allreduce_bucket_cap_mb": allreduce_bucket_cap_mb,
                          "assignment_strategy": self.assignment_strategy, "colocate_factors": colocate_factors,
                          "compute_method": self.compute_method,
                          "grad_worker_fraction": grad_worker_fraction, "symmetry_aware": symmetry_aware,
                          "factor_dtype": factor_dtype, "inv_dtype": inv_dtype, "skip_layers": skip_layers,
                          "damping_scale": damping_scale}
        peer = damping_scale == "kfac-pytorch"
        # `inverse` adds the damping itself to both factors: sqrt(lambda) of the constant split.
        inverse = self.compute_method is ComputeMethod.INVERSE
        if peer and inverse:
            options.setdefault("damping_split", "constant")
        self._squared = peer and inverse and options.get("damping_split") == "constant"
        options.setdefault("inverse_method", "cholesky" if inverse else "eigen")
        self._decay = self.factor_decay
        first = self.kl_clip
        self._clip = 0.0 if first is None else float(first)
        _checks.refuse_options(comm, "mean", grad_scaler, 0, options)  # Before a communicator is made.
        from ._distributed import default_comm
        comm = comm if comm is not None else default_comm()
        wide = torch.float64 in (inv_dtype, factor_dtype)
        super().__init__(
            model, comm=comm, accumulation_steps=accumulation_steps, grad_scaler=grad_scaler,
            skip_layers=skip_layers or (), kinds=(c.LINEAR, c.CONV2D) if peer else ALL_KINDS,
            scaling=peer_scaling if peer else None, damping=self._lambda(),
            new_weight=max(1 - self._decay, 1e-12), kl_clip=self._clip, statistics_interval=self.factor_update_steps,
            inverse_interval=self.inv_update_steps, grad_worker_fraction=self._fraction(grad_worker_fraction, comm),
            bucket_bytes=max(1, int(allreduce_bucket_cap_mb * 2**20)),
            dtype=torch.float64 if wide else options.pop("dtype", None), **options)
        self.without_effect = self._ineffective(assignment_strategy, colocate_factors, symmetry_aware,
                                                compute_eigenvalue_outer_product, update_factors_in_hook,
                                                factor_dtype, inv_dtype)
        if self.without_effect:
            _logger.warning("KFACPreconditioner: without effect here: %s",
                            "; ".join(f"{k} ({v})" for k, v in self.without_effect.items()))
        _logger.log(loglevel, "%r", self)

    @staticmethod
    def _check(values, accumulation_steps):
        for name, value in values.items():
            if value is not None and not callable(value) and not isinstance(value, torch.optim.Optimizer):
                (integer if name.endswith("steps") else real)("KFACPreconditioner", name, value)
        accumulation_steps = integer("KFACPreconditioner", "accumulation_steps", accumulation_steps)
        for name in ("factor_update_steps", "inv_update_steps", "damping", "kl_clip"):
            value = values[name]
            if value is not None and not callable(value) and not value > 0:
                raise ValueError(f"{name} must be > 0, not {value}")
        if not callable(values["factor_decay"]) and not 0 <= values["factor_decay"] <= 1:
            raise ValueError(f"factor_decay must be in [0, 1], not {values['factor_decay']}")
        fixed = not callable(values["lr"]) and not isinstance(values["lr"], torch.optim.Optimizer)
        if fixed and not values["lr"] >= 0:
            raise ValueError(f"lr must be >= 0, not {values['lr']}")
        if accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be > 0, not {accumulation_steps}")

    @staticmethod
    def _fraction(value, comm):
        if isinstance(value, str):
            value = _member(DistributedStrategy, "grad_worker_fraction", value)
        if isinstance(value, DistributedStrategy):
            value = {DistributedStrategy.COMM_OPT: 1.0, DistributedStrategy.HYBRID_OPT: 0.5,
                     DistributedStrategy.MEM_OPT: 0.0}[value]
        if not 0 <= value <= 1:
            raise ValueError(f"grad_worker_fraction must be in [0, 1], not {value}")
        workers = max(1, round(value * comm.size))
        if comm.size % workers:
            raise ValueError(f"grad_worker_fraction {value} of {comm.size} ranks gives groups of unequal size")
        return workers / comm.size if workers > 1 else 0.0

    @staticmethod
    def _ineffective(strategy, colocate, symmetric, outer, in_hook, factor_dtype, inv_dtype):
        found = {}
        if _member(AssignmentStrategy, "assignment_strategy", strategy) is AssignmentStrategy.MEMORY:
            found["assignment_strategy"] = "layers are assigned by operation counts"
        if not colocate:
            found["colocate_factors"] = "both factors of a layer have one owner"
        if not outer:
            found["compute_eigenvalue_outer_product"] = "products of eigenvalues are not stored"
        if not in_hook:
            found["update_factors_in_hook"] = "factors are always computed in the hooks"
        if factor_dtype in (torch.float16, torch.bfloat16) or inv_dtype in (torch.float16, torch.bfloat16):
            found["factor_dtype, inv_dtype"] = "factors and inverses are float32 or float64"
        return found

    def _value(self, name):
        value = self._values[name]
        return value(self._steps) if callable(value) else value

    def _set(self, name, value):
        self._values[name] = value

    steps = property(lambda self: self._steps, lambda self, value: setattr(self, "_steps", value))
    damping = property(lambda self: self._value("damping"))
    factor_decay = property(lambda self: self._value("factor_decay"))
    kl_clip = property(lambda self: self._value("kl_clip"))
    lr = property(lambda self: self._value("lr"))
    factor_update_steps = property(lambda self: self._value("factor_update_steps"))
    inv_update_steps = property(lambda self: self._value("inv_update_steps"))

    def _lambda(self):
        return self.damping ** 2 if self._squared else self.damping

    def _apply_settings(self, force=False):
        self.settings = {"damping": self._lambda(), "statistics_interval": int(self.factor_update_steps),
                         "inverse_interval": int(self.inv_update_steps)}
        super()._apply_settings(force)

    def step(self):
        """Preconditions the gradients of the model in place. They are averaged over ranks already, e.g. by
        DistributedDataParallel, and without a loss scale. Where the report that it returns has `rejected`, a gradient
        or a statistic of some rank was not finite: the gradients are unchanged, and optimizer.step() is to be left
        out."""
        self.settings["damping"] = self._lambda()
        # The clip is min(1, sqrt(kl_clip / (lr^2 sum))), so a changed kl_clip is a changed rate.
        clip, lr = self.kl_clip, self.lr
        if self._clip > 0:
            scale = (self._clip / clip) ** 0.5 if clip else 0
            if isinstance(lr, torch.optim.Optimizer):
                lr = {key: rate * scale for key, rate in _checks.rates_of(lr, True).items()}
            else:
                lr = max(max(float(lr), 1e-30) * scale, 1e-30)
        elif clip:
            raise InvalidArgument("[step] kl_clip was None or 0 at the start, so it cannot be turned on; start with a "
                                  "number or a callable that returns one")
        return super().step(lr if self._clip > 0 else None)

    def _say(self):
        return dict(super()._say(), values={n: v for n, v in self._values.items() if not callable(v)})

    def _hear(self, said):
        self._values.update(said["values"])
        super()._hear(said)

    def memory_usage(self):
        """As that of kfac-pytorch: bytes of factors and inverses, with "total"."""
        return dict(super().memory_usage(), a_batch=0, g_batch=0)

    def state_dict(self, include_factors=True):
        """`include_factors`: with the running averages and inverses, so that training resumes bit for bit."""
        state = {"steps": self.steps, **{n: v for n, v in self._values.items()
                                       if not callable(v) and not isinstance(v, torch.optim.Optimizer)}}
        if include_factors:
            state["dkfac"] = super().state_dict()
        return state

    def load_state_dict(self, state_dict, compute_inverses=True):
        """`compute_inverses` has no effect: inverses are part of the state."""
        if "layers" in state_dict and "dkfac" not in state_dict:
            raise InvalidArgument("[load_state_dict] this state was saved by kfac-pytorch; its factors are in another "
                                  "form, so only state_dict(include_factors=False) of it can be loaded")
        decay = state_dict.get("factor_decay", self._decay)
        if decay != self._decay:
            raise InvalidArgument(f"[load_state_dict] factor_decay is {decay} in the state and {self._decay} here; it "
                                  "is fixed for the life of the preconditioner, so pass that of the state to the "
                                  "constructor")
        kept = self._steps, self._values
        try:
            self._steps = state_dict["steps"]
            self._values = {name: state_dict.get(name, value) for name, value in kept[1].items()}
            if "dkfac" in state_dict:
                super().load_state_dict(state_dict["dkfac"])
        except Exception:
            self._steps, self._values = kept
            self._apply_settings()
            raise

    def __repr__(self):
        shown = {"accumulation_steps": self.accumulation_steps, "layers": len(self.curved()), "steps": self.steps,
                 "comm": self.comm, **{name: self._values[name] for name in self._values}, **self._defaults}
        lines = "\n".join(f"  {name}={shown[name]}," for name in sorted(shown))
        return f"KFACPreconditioner(\n{lines}\n)"


class LambdaParamScheduler:
    """Multiplies parameters of a KFACPreconditioner by functions of the step, at every step() of its own.

    A function is called with the step of the preconditioner, or with the one passed to step(); it returns the factor.
    Parameters that are callables already cannot have one.
    """

    def __init__(self, preconditioner, *, factor_update_steps_lambda=None, inv_update_steps_lambda=None,
                 damping_lambda=None, factor_decay_lambda=None, kl_clip_lambda=None, lr_lambda=None):
        self._preconditioner = preconditioner
        self._lambdas = {"factor_update_steps": factor_update_steps_lambda,
                         "inv_update_steps": inv_update_steps_lambda, "damping": damping_lambda,
                         "kl_clip": kl_clip_lambda, "lr": lr_lambda}
        if factor_decay_lambda is not None:
            raise ValueError("factor_decay_lambda: the factor decay is fixed for the life of the preconditioner")
        for name, function in self._lambdas.items():
            if function is not None and callable(preconditioner._values[name]):
                raise ValueError(f"{name} is a callable of the preconditioner already; pass only one of both")

    def step(self, step=None):
        step = self._preconditioner.steps if step is None else step
        for name, function in self._lambdas.items():
            if function is None:
                continue
            value = self._preconditioner._values[name] * function(step)
            self._preconditioner._set(name, max(1, int(value)) if name.endswith("steps") else value)
