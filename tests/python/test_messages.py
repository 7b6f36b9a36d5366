"""Errors name the remedy for the program at hand, and the remedy works."""
import contextlib
import sys
import types

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dkfac.torch as dkfac
from support import told


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def attached(model=None, **options):
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, dkfac.attach(model, optimizer, **options)


def refused(call, *words, never=()):
    with pytest.raises(dkfac.Error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
    assert not any(word in str(caught.value) for word in never), caught.value


def slope_loss(model, x):
    x = x.clone().requires_grad_()
    slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (slope - 1).square().mean()


def test_a_loss_of_derivatives_alone_is_named_once_with_the_layers_that_have_no_curvature():
    model, optimizer, kfac = attached()
    x = torch.ones(6, 4)
    with pytest.warns(UserWarning) as told:
        for _ in range(2):
            optimizer.zero_grad()
            slope_loss(model, x).backward()
            optimizer.step()
            assert kfac.last_report.updated
    texts = [str(one.message) for one in told if "[dkfac]" in str(one.message)]
    assert len(texts) == 2 and "derivatives of the model (create_graph=True)" in texts[0]
    assert "layer '2'" in texts[1] and "left as it is" in texts[1] and list(kfac.reasons()) == ["2"]


def test_a_single_backward_pass_with_a_graph_is_recorded():
    """Control."""
    model, optimizer, kfac = attached()
    model(torch.ones(6, 4)).square().mean().backward(create_graph=True)
    optimizer.step()
    assert kfac.last_report.updated
    optimizer.zero_grad()


def test_two_backward_passes_of_one_graph():
    model, optimizer, kfac = attached()
    out = model(torch.ones(6, 4))
    out.square().mean().backward(retain_graph=True)
    refused(out.sum().backward, "backward() or", "ran twice", "add them and call backward() once", "paused()",
            never=("skip_layers", "create_graph"))
    kfac.reset_batch()
    optimizer.zero_grad()
    out = model(torch.ones(6, 4))
    (out.square().mean() + out.sum()).backward()
    optimizer.step()
    assert kfac.last_report.updated


def test_more_backward_passes_than_were_given():
    model, optimizer, kfac = attached(accumulation_steps=1)
    losses = [model(torch.ones(6, 4)).square().mean() for _ in range(2)]
    losses[0].backward()
    refused(losses[1].backward, "accumulation_steps = 1 backward passes", "leave it out", never=("twice", "skip_layers"))


def test_a_discriminator_with_the_pass_of_its_generator():
    generator = nn.Linear(4, 4)
    model, optimizer, kfac = attached(accumulation_steps=2)

    def train(paused):
        for _ in range(2):
            for x in (torch.ones(6, 4), generator(torch.ones(6, 4)).detach()):
                (model(x).square().mean() / 2).backward()
            with kfac.paused() if paused else torch.enable_grad():
                model(generator(torch.ones(6, 4))).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    refused(lambda: train(False), "generator through its discriminator", "gradient penalty", "`with kfac.paused():`")
    kfac.reset_batch()
    optimizer.zero_grad()
    train(True)
    assert kfac.steps == 2 and kfac.last_report.updated


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.times = nn.Linear(4, 4), nn.Linear(4, 4), 2

    def forward(self, x):
        x = self.first(x)
        for _ in range(self.times):
            x = checkpoint(self.inner, x, use_reentrant=True)
        return x


def test_a_layer_in_two_checkpoints_keeps_its_gradient_and_is_an_error_where_it_had_been_in_one():
    model, optimizer, kfac = attached(Twice())
    model(torch.ones(6, 4)).sum().backward()
    raw = model.inner.weight.grad.clone()
    with pytest.warns(UserWarning, match="layer 'inner': it is used several times in one pass.*skip_layers"):
        optimizer.step()
    assert list(kfac.reasons()) == ["inner"] and torch.equal(model.inner.weight.grad, raw)
    kfac.detach()

    model, optimizer, kfac = attached(Twice())
    model.times = 1
    model(torch.ones(6, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.times = 2
    refused(model(torch.ones(6, 4)).sum().backward, "layer 'inner'", "used twice in one pass", "skip_layers")


def test_gradients_of_a_loss_beside_its_backward_pass_name_the_function_and_the_way():
    model, optimizer, kfac = attached(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)))
    for paused in (True, False):
        loss = model(torch.ones(6, 4)).square().mean()
        with kfac.paused() if paused else contextlib.nullcontext():
            torch.autograd.grad(loss, model[2].weight, retain_graph=True)
        if paused:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    refused(loss.backward, "layer '2' arrived twice", "torch.autograd.grad() ran twice", "retain_graph=True", "paused()")


class LightningModule(nn.Module):
    """Known by its name, as that of Lightning."""


@pytest.mark.parametrize("where", ["own", "net"])
def test_a_lightning_module_on_one_rank_is_attached_as_it_is(where):
    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.backbone, self.loss = net(), nn.MSELoss()

        def training_step(self, x):
            return self.backbone(x).square().mean()
    module = Module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    kfac = dkfac.attach(module if where == "own" else module.backbone, optimizer)
    module.training_step(torch.ones(6, 4)).backward()
    optimizer.step()
    assert kfac.last_report.updated


def test_parts_without_samples_are_told_what_to_do():
    """With batch_dim=f, whose arguments are those of the whole model."""
    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.backbone = net()
    for model, part, advice in ((Module(), "backbone", "attach to self.backbone in place of self"),
                                (nn.Sequential(net(), nn.Linear(3, 2)), "0", "the one that is called, e.g. model.0")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.attach(model, optimizer, batch_dim=len)
        getattr(model, part)(torch.ones(6, 4)).sum().backward()
        refused(optimizer.step, "no forward pass of the attached module", advice)
        kfac.detach()


DISTRIBUTED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.fsdp import fully_shard
import dkfac.torch as dkfac
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))

def shard(model, kind):
    if kind == "tensor":
        parallelize_module(model, mesh, {"0": SequenceParallel(use_local_output=True), "1": ColwiseParallel()})
    else:
        fully_shard(model, mesh=mesh)

for kind in ("tensor", "data"):
    for late in (False, True):
        model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))
        if not late:
            shard(model, kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            kfac = dkfac.attach(model, optimizer)
            if late:
                shard(model, kind)
            model(torch.randn(6, 2, 4)).square().sum().backward()
            optimizer.step()
            print(kind, {name: "tensor parallelism" in reason for name, reason in kfac.reasons().items()})
        except dkfac.Error as error:
            print(kind, "shard first, then make the optimizer, then attach" in str(error))
dist.destroy_process_group()
"""


def test_tensor_parallelism_is_no_fsdp(tmp_path):
    """Its layers but for Linear are left alone, by name; a model that is sharded after attach() has other parameters
    than it had."""
    pytest.importorskip("torch.distributed.tensor.parallel")
    if not hasattr(torch.distributed, "device_mesh"):
        pytest.skip("this version of torch has no device meshes")
    from support import run_python
    said = run_python(DISTRIBUTED, str(tmp_path / "store"))
    assert said.split("\n")[:4] == ["tensor {'0': True}", "tensor True", "data {}", "data True"], said


def test_a_model_in_eval_mode():
    model, optimizer, kfac = attached()
    model.eval()
    model(torch.ones(6, 4)).square().mean().backward()
    refused(optimizer.step, "the model is in eval mode", "call model.train() before the forward pass",
            never=("LightningModule", "attach to"))
    optimizer.zero_grad()
    model.train()(torch.ones(6, 4)).square().mean().backward()
    optimizer.step()
    assert kfac.last_report.updated


@pytest.mark.parametrize("accumulates", [True, False])
def test_what_accelerate_accumulates_is_found_by_the_first_pass(accumulates, monkeypatch):
    """As if it had been given; control: an Accelerator that does not accumulate this pass, but those of others."""
    class GradientState:
        _shared_state = {"num_steps": 3}
        num_steps, sync_gradients = 3, not accumulates
    monkeypatch.setitem(sys.modules, "accelerate.state", types.SimpleNamespace(GradientState=GradientState))
    ends = []
    for options in ({}, {"accumulation_steps": 3}):
        model, optimizer, kfac = attached(**options)
        with told() as texts:
            for i in range(3):
                (model(torch.full((6, 4), 1.0 + i)).square().mean() / 3).backward()
            optimizer.step()
        assert kfac.last_report.updated == (accumulates or bool(options)) and len(texts) != kfac.last_report.updated
        assert kfac._recorder.count.passes == 3
        ends.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *ends)) == accumulates
