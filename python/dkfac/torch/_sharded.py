"""Parameters that are DTensors: those of torch.distributed.fsdp.fully_shard(), of which each rank has some rows, and
whose modules have the whole ones in their passes; and those of tensor parallelism."""
from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .._library import InvalidArgument

LATE = ("fully_shard(), or tensor parallelism, has replaced the parameters of the model since attach(): shard first, "
        "then make the optimizer, then attach")
_PLAIN = (torch.Tensor, nn.Parameter)
# The sharded parameters of modules, whose places whole ones take for a time: {module: {name: parameter}}.
_kept: weakref.WeakKeyDictionary[nn.Module, dict[str, nn.Parameter]] = weakref.WeakKeyDictionary()


def is_sharded(tensor: object) -> bool:
    return type(tensor) not in _PLAIN and hasattr(tensor, "device_mesh")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor, without a copy."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    if not torch.is_grad_enabled():
        return sharded.to_local()
    with torch.no_grad():
        return sharded.to_local()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which ranks of tensor parallelism have parts, or terms, once it is there; collective over
    them."""
    found: Any = tensor
    with torch.no_grad():
        if is_sharded(tensor):
            found = found.full_tensor()
        return found.wait() if hasattr(found, "wait") else found  # Of a collective that runs still.


def _is_root(module: nn.Module) -> bool:
    """Whether fully_shard() was given the module."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def class_name(module: nn.Module) -> str:
    """Without the prefix that fully_shard() gives."""
    return type(module).__name__[4 * _is_root(module):]


def reshard(model: nn.Module) -> None:
    """Takes back the whole parameters that a pass without a backward pass has left."""
    for module in model.modules():
        if _is_root(module):
            shard: Any = module
            shard.reshard()


def managed(model: nn.Module) -> set[nn.Module]:
    """The modules whose parameters fully_shard() gathers."""
    return {module for root in model.modules() if _is_root(root) for module in root.modules()}


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The own parameters of a module by name, those that are sharded as such also within its pass."""
    own = {name: p for name, p in module._parameters.items() if p is not None}
    if any(map(is_sharded, own.values())):
        _kept.setdefault(module, {}).update((name, p) for name, p in own.items() if is_sharded(p))
    return {**own, **_kept.get(module, {})} if module in _kept else own


def _of_fsdp(parameter: Any, by_fsdp: bool) -> int:
    """How many dimensions of its mesh are those of fully_shard(), the first ones; HSDP has two."""
    return 1 + (type(parameter.placements[0]).__name__ == "Replicate") if by_fsdp else 0


def data_place(model: nn.Module, rank: int, size: int) -> tuple[int, int]:
    """Which part of the samples of all ranks this rank has, and how many parts there are: the ranks of one group of
    tensor parallelism have the same. Collective where there are such groups."""
    gathered = managed(model)
    for module in model.modules():
        for p in filter(is_sharded, parameters_of(module).values()):
            sharded: Any = p
            dims = _of_fsdp(p, module in gathered)
            if sharded.device_mesh.ndim > dims:
                own = sharded.device_mesh.mesh[tuple(sharded.device_mesh.get_coordinate()[:dims])]
                firsts: list[Any] = [None] * size
                dist.all_gather_object(firsts, int(own.min()))
                return sorted(set(firsts)).index(firsts[rank]), len(set(firsts))
    return rank, size


def reason(parameters: Collection[nn.Parameter], by_fsdp: bool, gathered: bool) -> str | None:
    """Why a layer with these parameters has no curvature; None if it may have. `gathered`: where tensor parallelism
    divides it, its records are."""
    for p in parameters:
        if not is_sharded(p):
            continue
        sharded: Any = p
        kinds = [type(one).__name__ for one in sharded.placements]
        dims = {getattr(one, "dim", 0) for one in sharded.placements}
        alone = len(kinds) == _of_fsdp(p, by_fsdp)
        if alone and dims != {0}:
            return f"fully_shard() shards its dimension {max(dims)}; only shards of dimension 0 are gathered"
        if not alone and not (gathered and "Partial" not in kinds and dims <= {0, 1}):
            return ("tensor parallelism shards its weight, or keeps it as a DTensor: of such layers only Linear, whose "
                    "weight is in shards of rows or columns, has its inputs and gradients gathered")
    return None


def refusal(model: nn.Module) -> str | None:
    """Why a model with such parameters cannot be trained; None if it can."""
    if any(kind.__name__ == "FullyShardedDataParallel" for m in model.modules() for kind in type(m).__mro__):
        return ("is sharded by FullyShardedDataParallel (FSDP1), which keeps no whole weights or gradients; shard it "
                "by torch.distributed.fsdp.fully_shard() (FSDP2), or use DistributedDataParallel")
    for name, p in model.named_parameters():
        if is_sharded(p) and p.device_mesh.device_type != p.device.type:  # type: ignore[attr-defined]
            return (f"has parameters that are off-loaded to the {p.device.type}, e.g. '{name}', by an offload_policy: "
                    "leave it out, since gradients are preconditioned where they are computed")
    return None


def refuse_comm(model: nn.Module, rank: int, size: int) -> None:
    """A communicator of other ranks than torch.distributed has, by whose collectives gradients are gathered."""
    if any(map(is_sharded, model.parameters())) and (rank, size) != (dist.get_rank(), dist.get_world_size()):
        raise InvalidArgument(f"[attach] the model is sharded over ranks of torch.distributed, which has "
                              f"{dist.get_world_size()}, and the communicator has {size}: leave comm out")


class Place:
    """Where a module has a parameter of a layer: itself, or the whole one during a pass."""

    __slots__ = ("_module", "_name", "_parameter", "_sharded")

    def __init__(self, module: nn.Module, parameter: nn.Parameter | None) -> None:
        self._module, self._parameter = module, parameter
        self._sharded = parameter is not None and is_sharded(parameter)
        self._name = self.name_now()

    def now(self) -> torch.Tensor | None:
        return self._module._parameters.get(self._name or "") if self._sharded else self._parameter

    def name_now(self) -> str | None:
        """The name by which the module has the parameter, if it has it, outside of a pass."""
        return next((name for name, p in parameters_of(self._module).items() if p is self._parameter), None)

    def kept(self) -> bool:
        """Whether the module has the parameter by the same name as at first, outside of a pass."""
        return (self._parameter is None or self._module._parameters.get(self._name or "") is self._parameter
                or self.name_now() == self._name is not None)
