"""The interface of kfac-pytorch: KFACPreconditioner with its arguments, enumerations, properties and scheduler."""
from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

import torch
from torch import nn

from .. import _structs as c
from .._comm import Comm
from .._library import InvalidArgument, integer, real
from .._preconditioner import StepReport
from . import _checks
from ._distributed import default_comm
from ._gradients import Rates
from ._layers import Layer
from ._model import ALL_KINDS, ModelPreconditioner
from ._options import CommonOptions, describe
from ._settings import NAMES, Settings
from ._setup import GradScaler

if TYPE_CHECKING:
    from typing_extensions import Unpack

Scheduled = Union[float, Callable[[int], float]]  # A number, or a function of the step.
ScheduledInt = Union[int, Callable[[int], int]]
_logger = logging.getLogger(__name__)
_Enum = TypeVar("_Enum", bound=enum.Enum)


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


def _member(kind: type[_Enum], name: str, value: object) -> _Enum:
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    raise ValueError(f"{name} is {value!r}; it must be one of " + ", ".join(kind.__members__))


def peer_scaling(layer: Layer, positions: int) -> tuple[int, float]:
    """kfac-pytorch averages both factors over the rows of the batch, gradients of the reduced loss as they come:
    G = 1/(N P) sum g g'. Convolutions divide inputs and gradients by the positions P before that. Here
    A = 1/(a N P) sum a a' and G = 1/N sum (g / s)(g / s)'."""
    if layer.kind == c.CONV2D:
        return positions * positions, positions ** 1.5
    return 1, positions ** 0.5


class PeerSettings(Settings):
    """Settings computed from the arguments of kfac-pytorch, `given`: numbers, or functions of the step. `squared`: the
    damping is that of one factor."""

    def __init__(self, given: Mapping[str, Any], squared: bool) -> None:
        self.given, self.squared, self.steps = dict(given), squared, 0
        super().__init__(self._now(), NAMES)

    def value(self, name: str) -> Any:
        value = self.given[name]
        return value(self.steps) if callable(value) else value

    def numbers(self) -> dict[str, Any]:
        return {name: value for name, value in self.given.items() if not callable(value)}

    def _now(self) -> dict[str, Any]:
        damping = self.value("damping")
        return {"damping": damping ** 2 if self.squared else damping,
                "statistics_interval": int(self.value("factor_update_steps")),
                "inverse_interval": int(self.value("inv_update_steps"))}

    def refresh(self) -> None:
        self.values = self._now()

    def say(self) -> dict[str, Any]:
        return dict(super().say(), given=self.numbers())

    def hear(self, said: Mapping[str, Any], apply: Callable[[], None]) -> None:
        self.given.update(said["given"])
        super().hear(said, apply)


@describe(CommonOptions)
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

    def __init__(self, model: nn.Module, *, factor_update_steps: ScheduledInt = 1, inv_update_steps: ScheduledInt = 1,
                 damping: Scheduled = 0.001, factor_decay: Scheduled = 0.95,
                 kl_clip: float | Callable[[int], float | None] | None = 0.001,
                 lr: Scheduled | torch.optim.Optimizer = 0.1, accumulation_steps: int = 1,
                 allreduce_bucket_cap_mb: float = 25.0,
                 assignment_strategy: AssignmentStrategy | str = AssignmentStrategy.COMPUTE,
                 colocate_factors: bool = True, compute_method: ComputeMethod | str = ComputeMethod.EIGEN,
                 compute_eigenvalue_outer_product: bool = True,
                 grad_worker_fraction: DistributedStrategy | str | float = DistributedStrategy.COMM_OPT,
                 symmetry_aware: bool = False, grad_scaler: GradScaler | None = None,
                 factor_dtype: torch.dtype | None = None, inv_dtype: torch.dtype | None = torch.float32,
                 skip_layers: _checks.SkipLayers = None, update_factors_in_hook: bool = True,
                 loglevel: int = logging.DEBUG, damping_scale: str = "kfac-pytorch", comm: Comm | None = None,
                 dtype: torch.dtype | int | None = None, **options: Unpack[CommonOptions]) -> None:
        values = {"factor_update_steps": factor_update_steps, "inv_update_steps": inv_update_steps,
                  "damping": damping, "factor_decay": factor_decay, "kl_clip": kl_clip, "lr": lr}
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
        options.setdefault("inverse_method", "cholesky" if inverse else "eigen")
        squared = peer and inverse and options.get("damping_split") == "constant"
        self._given = PeerSettings(values, squared)
        self._decay = float(self.factor_decay)
        self._clip = float(self.kl_clip or 0)
        _checks.refuse_options(comm, "mean", grad_scaler, 0, options)  # Before a communicator is made.
        comm = comm if comm is not None else default_comm()
        wide = torch.float64 in (inv_dtype, factor_dtype)
        super().__init__(
            model, comm=comm, accumulation_steps=accumulation_steps, grad_scaler=grad_scaler,
            skip_layers=skip_layers or (), kinds=(c.LINEAR, c.CONV2D) if peer else ALL_KINDS,
            scaling=peer_scaling if peer else None, settings=self._given, damping=self._given.values["damping"],
            new_weight=max(1 - self._decay, 1e-12), kl_clip=self._clip, statistics_interval=self.factor_update_steps,
            inverse_interval=self.inv_update_steps, grad_worker_fraction=self._fraction(grad_worker_fraction, comm),
            bucket_bytes=max(1, int(allreduce_bucket_cap_mb * 2**20)),
            dtype=torch.float64 if wide else dtype, **options)
        self.without_effect = self._ineffective(assignment_strategy, colocate_factors, compute_eigenvalue_outer_product,
                                                update_factors_in_hook, factor_dtype, inv_dtype)
        if self.without_effect:
            _logger.warning("KFACPreconditioner: without effect here: %s",
                            "; ".join(f"{k} ({v})" for k, v in self.without_effect.items()))
        _logger.log(loglevel, "%r", self)

    @staticmethod
    def _check(values: Mapping[str, Any], accumulation_steps: int) -> None:
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
    def _fraction(value: DistributedStrategy | str | float, comm: Comm) -> float:
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
    def _ineffective(strategy: AssignmentStrategy | str, colocate: bool, outer: bool, in_hook: bool,
                     factor_dtype: torch.dtype | None, inv_dtype: torch.dtype | None) -> dict[str, str]:
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

    @property
    def steps(self) -> int:
        return self._given.steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._given.steps = value

    @property
    def damping(self) -> float:
        return self._given.value("damping")

    @property
    def factor_decay(self) -> float:
        return self._given.value("factor_decay")

    @property
    def kl_clip(self) -> float | None:
        return self._given.value("kl_clip")

    @property
    def lr(self) -> float | torch.optim.Optimizer:
        return self._given.value("lr")

    @property
    def factor_update_steps(self) -> int:
        return self._given.value("factor_update_steps")

    @property
    def inv_update_steps(self) -> int:
        return self._given.value("inv_update_steps")

    def step(self) -> StepReport:
        """Preconditions the gradients of the model in place. They are averaged over ranks already, e.g. by
        DistributedDataParallel, and without a loss scale. Where the report that it returns has `rejected`, a gradient
        or a statistic of some rank was not finite: the gradients are unchanged, and optimizer.step() is to be left
        out."""
        self._given.refresh()
        return self.precondition(self._rates())

    def _rates(self) -> Rates:
        """The clip is min(1, sqrt(kl_clip / (lr^2 sum))), so a changed kl_clip is a changed rate."""
        clip, lr = self.kl_clip, self.lr
        if self._clip > 0:
            scale = (self._clip / clip) ** 0.5 if clip else 0.0
            if isinstance(lr, torch.optim.Optimizer):
                return {key: rate * scale for key, rate in _checks.rates_of(lr, True).items()}
            return max(max(float(lr), 1e-30) * scale, 1e-30)
        if clip:
            raise InvalidArgument("[step] kl_clip was None or 0 at the start, so it cannot be turned on; start with a "
                                  "number or a callable that returns one")
        return None

    def memory_usage(self) -> dict[str, int]:
        """As that of kfac-pytorch: bytes of factors and inverses, with "total"."""
        return dict(super().memory_usage(), a_batch=0, g_batch=0)

    def state_dict(self, include_factors: bool = True) -> dict[str, Any]:
        """`include_factors`: with the running averages and inverses, so that training resumes bit for bit."""
        state = {"steps": self.steps, **{n: v for n, v in self._given.numbers().items()
                                         if not isinstance(v, torch.optim.Optimizer)}}
        if include_factors:
            state["dkfac"] = super().state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], compute_inverses: bool = True) -> None:
        """`compute_inverses` has no effect: inverses are part of the state."""
        if "layers" in state_dict and "dkfac" not in state_dict:
            raise InvalidArgument("[load_state_dict] this state was saved by kfac-pytorch; its factors are in another "
                                  "form, so only state_dict(include_factors=False) of it can be loaded")
        decay = state_dict.get("factor_decay", self._decay)
        if decay != self._decay:
            raise InvalidArgument(f"[load_state_dict] factor_decay is {decay} in the state and {self._decay} here; it "
                                  "is fixed for the life of the preconditioner, so pass that of the state to the "
                                  "constructor")
        given = self._given
        kept = given.steps, given.given
        try:
            given.steps = state_dict["steps"]
            given.given = {name: state_dict.get(name, value) for name, value in kept[1].items()}
            if "dkfac" in state_dict:
                super().load_state_dict(state_dict["dkfac"])
        except Exception:
            given.steps, given.given = kept
            self._recorder.apply_settings()
            raise

    def __repr__(self) -> str:
        shown = {"accumulation_steps": self._recorder.setup.accumulation_steps, "layers": len(self.curved()),
                 "steps": self.steps, "comm": self.comm, **self._given.given, **self._defaults}
        lines = "\n".join(f"  {name}={shown[name]}," for name in sorted(shown))
        return f"KFACPreconditioner(\n{lines}\n)"


Factor = Callable[[int], float]


class LambdaParamScheduler:
    """Multiplies parameters of a KFACPreconditioner by functions of the step, at every step() of its own.

    A function is called with the step of the preconditioner, or with the one passed to step(); it returns the factor.
    Parameters that are callables already cannot have one.
    """

    def __init__(self, preconditioner: KFACPreconditioner, *, factor_update_steps_lambda: Factor | None = None,
                 inv_update_steps_lambda: Factor | None = None, damping_lambda: Factor | None = None,
                 factor_decay_lambda: Factor | None = None, kl_clip_lambda: Factor | None = None,
                 lr_lambda: Factor | None = None) -> None:
        self._preconditioner = preconditioner
        self._lambdas = {"factor_update_steps": factor_update_steps_lambda,
                         "inv_update_steps": inv_update_steps_lambda, "damping": damping_lambda,
                         "kl_clip": kl_clip_lambda, "lr": lr_lambda}
        if factor_decay_lambda is not None:
            raise ValueError("factor_decay_lambda: the factor decay is fixed for the life of the preconditioner")
        for name, function in self._lambdas.items():
            if function is not None and callable(preconditioner._given.given[name]):
                raise ValueError(f"{name} is a callable of the preconditioner already; pass only one of both")

    def step(self, step: int | None = None) -> None:
        given = self._preconditioner._given
        step = given.steps if step is None else step
        for name, function in self._lambdas.items():
            if function is not None:
                value = given.given[name] * function(step)
                given.given[name] = max(1, int(value)) if name.endswith("steps") else value
