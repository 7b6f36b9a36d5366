"""A GradScaler that K-FAC was not given is found, where torch has one that works on the host (since 2.3) and for a
stand-in where it has none; a step that it skips drops its records."""
import gc

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch import _scalers
from support import run_python, told

try:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8)
    missing = not scaler.is_enabled()
except (AttributeError, TypeError, RuntimeError):
    missing = True


class Standin:
    """What torch's GradScaler does, without its check of the device."""

    def __init__(self, init_scale, enabled=True):
        self.factor, self.enabled, self.finite, self.done = init_scale, enabled, {}, set()

    def is_enabled(self):
        return self.enabled

    def get_scale(self):
        return self.factor if self.enabled else 1.0

    def scale(self, outputs):
        if isinstance(outputs, (list, tuple)):
            return [self.scale(out) for out in outputs]
        return outputs * torch.tensor(self.factor, dtype=torch.float32) if self.enabled else outputs

    def unscale_(self, optimizer):
        if not self.enabled or id(optimizer) in self.done:
            return
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for grad in grads:
            grad.div_(self.factor)
        self.done.add(id(optimizer))
        self.finite[id(optimizer)] = all(bool(torch.isfinite(grad).all()) for grad in grads)

    def step(self, optimizer):
        self.unscale_(optimizer)
        if self.finite.get(id(optimizer), True):
            optimizer.step()

    def update(self):
        self.done.clear()


def forget():
    """No preconditioner of an earlier run listens any more."""
    _scalers._keep(lambda reference: False)


@pytest.fixture(params=[False, True], ids=["torch", "stand-in"])
def make(request, monkeypatch):
    """A function that makes a scaler."""
    forget()
    if request.param:
        monkeypatch.setattr(torch.cuda.amp, "GradScaler", Standin)
        yield Standin
    elif missing:
        pytest.skip(f"torch {torch.__version__} has no GradScaler on the host")
    else:
        yield lambda scale, enabled=True: torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)
    forget()


def net():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def train(make, scaled, given=False, overflow_at=None, scale=2.0 ** 8, compatible=False, parts=1, interval=1):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = make(scale, enabled=scaled)
    options = {"grad_scaler": scaler} if given else {}
    if compatible:
        kfac = dkfac.KFACPreconditioner(model, factor_update_steps=interval, **options)
    else:
        kfac = dkfac.attach(model, optimizer, new_weight=1.0, statistics_interval=interval, **options)
    generator = torch.Generator().manual_seed(3)
    for step in range(4):
        x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 3, generator=generator)
        optimizer.zero_grad()
        if step == overflow_at:
            (scaler.scale(model(x).sum()) * float("inf")).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        errors = (model(x) - y) ** 2
        if parts == 1:
            scaler.scale(errors.mean()).backward()
        else:  # A list of losses.
            torch.autograd.backward(scaler.scale([part.sum() / errors.numel() for part in errors.chunk(parts)]))
        if compatible:
            scaler.unscale_(optimizer)
            kfac.step()
        scaler.step(optimizer)
        scaler.update()
    assert kfac.steps == 4
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("options", [{}, {"compatible": True}, {"parts": 2}, {"interval": 2}, {"overflow_at": 2}],
                         ids=str)
@pytest.mark.parametrize("scale", [256.0, 1000.0])
def test_a_scaler_is_found_as_if_it_had_been_given(make, options, scale):
    with told() as texts:
        found = train(make, True, scale=scale, **options)
        given = train(make, True, given=True, scale=scale, **options)
    assert torch.equal(found, given) and texts == []
    if scale == 256.0:  # Powers of two are exact.
        assert torch.equal(found, train(make, False, **{**options, "overflow_at": None}))


def test_a_scale_that_is_not_found_makes_another_step(make, monkeypatch):
    """Control; it is told."""
    expected = train(make, True)
    forget()
    monkeypatch.setattr(_scalers, "_wrap", lambda original: original)
    with told() as texts:
        assert not torch.allclose(train(make, True), expected, rtol=1e-2)
    assert len(texts) == 1 and "grad_scaler=" in texts[0]


def test_models_with_scalers_of_their_own(make):
    """Each has the scale of the loss whose backward pass reaches it."""
    ends = []
    for together in (True, False):
        models = [net(), net()]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        scalers = [make(4.0), make(1024.0)]
        attached = [dkfac.attach(*both) for both in zip(models, optimizers)]
        x = torch.ones(8, 4)
        if together:
            losses = [model(x).square().mean() for model in models]
            losses = [scaler.scale(loss) for scaler, loss in zip(scalers, losses)]
            for loss in losses:
                loss.backward()
        for model, optimizer, scaler in zip(models, optimizers, scalers):
            if not together:
                scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
        assert all(kfac.last_report.updated for kfac in attached)
        ends.append([p.detach().clone() for model in models for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends))


@pytest.mark.parametrize("end", ["detach", "collected"])
def test_the_class_of_scalers_is_as_before_when_nobody_listens(make, end):
    kind, models, attached = torch.cuda.amp.GradScaler, [net(), net()], []
    scale = kind.scale
    for model in models:
        attached.append(dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)))
        assert kind.scale is not scale
    while attached:
        assert kind.scale is not scale
        kfac = attached.pop()
        if end == "detach":
            kfac.detach()
        del kfac
        models.pop()
        gc.collect()
    assert kind.scale is scale


FRAMEWORKS = """
import sys, warnings
import torch
from torch import nn
import dkfac.torch as dkfac
warnings.simplefilter("ignore")
torch.set_num_threads(1)
data = [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(3)]

def trained(run, given):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    run(model, torch.optim.SGD(model.parameters(), lr=0.01), given)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

def accelerate(model, optimizer, given):
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1000.0)  # As it makes one for fp16 on a device.
    kfac = dkfac.attach(model, optimizer, **({"grad_scaler": accelerator.scaler} if given else {}))
    model, optimizer = accelerator.prepare(model, optimizer)
    assert optimizer.scaler is accelerator.scaler
    for x, y in data:
        optimizer.zero_grad()
        accelerator.backward((model(x) - y).square().mean())
        optimizer.step()
    assert kfac.steps == 3 and kfac.last_report.updated

def lightning(model, optimizer, given):
    import lightning as L
    from lightning.pytorch.plugins import MixedPrecision
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0)
    kfac = dkfac.attach(model, optimizer, **({"grad_scaler": scaler} if given else {}))

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model

        def training_step(self, batch, index):
            return (self.net(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            return optimizer
    plugin = MixedPrecision("bf16-mixed", "cpu")
    plugin.scaler = scaler  # As 16-mixed makes one on a device.
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, plugins=[plugin],
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=None))
    assert kfac.steps == 3 and kfac.last_report.updated

run = {"accelerate": accelerate, "lightning": lightning}[sys.argv[1]]
found, given = trained(run, False), trained(run, True)
assert torch.isfinite(found).all() and torch.equal(found, given), (found, given)
print("equal")
"""


@pytest.mark.skipif(missing, reason="no GradScaler on the host")
@pytest.mark.parametrize("framework", ["accelerate", "lightning"])
def test_scalers_of_frameworks(framework):
    pytest.importorskip(framework)
    assert run_python(FRAMEWORKS, framework, timeout=300).splitlines()[-1] == "equal"
