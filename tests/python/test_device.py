"""CUDA tensors go by pointer, on the stream that is current in the hook. SKIPPED without a device."""
import copy

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def net():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3))


def train(device, steps=4, scaler=None, overflow_at=None, **options):
    torch.manual_seed(3)
    model = net().double().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kfac = dkfac.attach(model, optimizer, damping=0.01, grad_scaler=scaler, **options)
    generator = torch.Generator().manual_seed(4)
    for step in range(steps):
        x = torch.randn(6, 2, 6, 6, generator=generator).double().to(device)
        y = torch.randn(6, 3, generator=generator).double().to(device)
        if step == overflow_at:
            scale, done = scaler.get_scale(), kfac.steps
            moments = [(m, copy.deepcopy(m.state_dict())) for m in model if isinstance(m, nn.BatchNorm2d)]
            (scaler.scale(model(x).sum()) * float("inf")).backward()
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() < scale and kfac.steps == done
            for module, state in moments:  # The forward pass of the skipped step has moved running averages.
                module.load_state_dict(state)
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return torch.cat([p.detach().cpu().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("options", [{}, {"inverse_method": "eigen"}, {"inverse_interval": 3}])
def test_device_agrees_with_the_host(options):
    assert torch.allclose(train("cuda", **options), train("cpu", **options), rtol=1e-8, atol=1e-10)


def test_graphs_change_no_bits():
    assert torch.equal(train("cuda", graphs=False), train("cuda"))


def test_other_streams():
    expected = train("cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = train("cuda")
    assert torch.equal(found, expected)


def test_grad_scaler():
    expected = train("cuda")
    scaler = torch.cuda.amp.GradScaler(init_scale=2.0 ** 10)
    assert torch.allclose(train("cuda", scaler=scaler), expected, rtol=1e-10, atol=1e-12)


def test_a_step_that_overflows_drops_its_records():
    """GradScaler skips it and lowers its scale; what follows is as if it had not been."""
    expected = train("cuda")
    scaler = torch.cuda.amp.GradScaler(init_scale=2.0 ** 10)
    found = train("cuda", scaler=scaler, overflow_at=2)
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert torch.isfinite(found).all() and not torch.allclose(expected, train("cuda", steps=3), rtol=1e-3)  # Control
