"""A loss scale that K-FAC was not told of, and gradients that are summed over ranks, are told; clipping is not."""
import json

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import told
from test_ranks import run_ranks
from test_scaler import Standin, missing


def train(scale, passes=1, divisor=1, clip=None, compatible=False, scaler=None, **options):
    """Two steps with the loss times `scale`, whose gradients are divided by scale x divisor before the step."""
    torch.manual_seed(2)
    model, x, y = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(8, 4), torch.randn(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if compatible:
        kfac = dkfac.KFACPreconditioner(model, **options)
    else:
        kfac = dkfac.attach(model, optimizer, accumulation_steps=passes, **options)
    with told() as texts:
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(passes):
                loss = (model(x) - y).pow(2).mean() * divisor / passes
                (scaler.scale(loss) if scaler else loss * scale).backward()
            if scaler:
                scaler.unscale_(optimizer)
            for p in model.parameters():
                p.grad.div_(divisor if scaler else scale * divisor)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            if compatible:
                kfac.step()
            scaler.step(optimizer) if scaler else optimizer.step()
            if scaler:
                scaler.update()
    assert kfac.steps == 2
    return texts


@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize("scale", [2.0, 1000.0, 65536.0])
def test_a_forgotten_loss_scale_is_told(scale, compatible):
    text, = train(scale, compatible=compatible)
    assert f"1/{scale:g} of those of its backward passes" in text and "grad_scaler=" in text and "norms" in text
    assert train(scale, compatible=compatible, grad_scaler=lambda: scale) == []


def test_a_loss_scale_that_is_told_wrong():
    text, = train(65536.0, grad_scaler=lambda: 256.0)
    assert "1/256 of" in text and "grad_scaler does not tell of" in text


def test_gradients_divided_by_the_number_of_passes():
    text, = train(1.0, passes=4, divisor=4)
    assert "1/4 of" in text and "divide the loss" in text
    assert train(1.0, passes=4) == []
    assert len(train(1024.0, passes=4)) == 1


@pytest.mark.parametrize("clip", [1.0, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize("compatible", [False, True])
def test_clipping_is_no_loss_scale(clip, compatible):
    assert train(1.0, clip=clip, compatible=compatible) == []


@pytest.mark.parametrize("scale", [1000.0, 65536.0])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_scaler_of_another_library_that_is_forgotten_is_told_also_with_clipping(scale, clip):
    text, = train(scale, scaler=Standin(scale), clip=clip)
    assert "grad_scaler=" in text and "norms" in text
    given = Standin(scale)
    assert train(scale, scaler=given, clip=clip, grad_scaler=given) == []
    assert train(scale, scaler=Standin(scale, enabled=False), clip=clip) == []


@pytest.mark.skipif(missing, reason="no GradScaler on the host")
@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_grad_scaler_of_torch_is_found(clip):
    assert train(1000.0, scaler=torch.amp.GradScaler("cpu", init_scale=1000.0), clip=clip) == []


RANKS = """
import contextlib, json, os, sys, warnings
import torch
import torch.distributed as dist
from torch import nn
import dkfac.torch as dkfac
rank, mode = int(sys.argv[1]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
torch.manual_seed(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        wrong = 3 if mode == "other input on one rank" and rank == 1 else 1
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * wrong if t.shape == x.shape else t, lambda t: t):
            h = self.body(x)
        return self.head(torch.tanh(h))

model = Net()
options = {"accumulation": {"accumulation_steps": 2}, "forgotten scale given": {"grad_scaler": lambda: 1024.0},
           "sum of a sum": {"loss_reduction": "sum"}, "own TCP": {"comm": dkfac.Comm.torch_tcp()}}.get(mode, {})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
summed = mode.startswith("sum")
wrap = dict(gradient_as_bucket_view=True) if mode == "bucket views" else {}
if mode == "attached first":
    kfac = dkfac.attach(model, optimizer, **options)
call = model if summed else nn.parallel.DistributedDataParallel(model, **wrap)
if mode != "attached first":
    kfac = dkfac.attach(model, optimizer, **options)
x, y = torch.randn(2, 8, 4)[rank], torch.randn(2, 8, 3)[rank]
passes = options.get("accumulation_steps", 1)
scale = 1024.0 if "scale" in mode else 1.0
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    for step in range(3):
        optimizer.zero_grad()
        for i in range(passes):
            first = i + 1 < passes
            with call.no_sync() if first else contextlib.nullcontext():
                errors = (call(x) - y).pow(2)
                loss = errors.sum() if mode == "sum of a sum" else errors.mean()
                (loss * scale / (2 if mode == "summed, global" else 1) / passes).backward()
        raw = model.body.weight.grad / scale
        for p in model.parameters():
            p.grad.div_(scale)
            if summed:
                dist.all_reduce(p.grad)
        if mode == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        assert kfac.last_report.updated
    kept = torch.equal(raw, model.body.weight.grad)
said = [str(w.message) for w in found if "[dkfac]" in str(w.message) and "have curvature: " not in str(w.message)]
print(json.dumps([said, kfac.reasons(), kept]), flush=True)
dist.barrier()
os._exit(0)  # Threads of gloo may abort a process of torch 1.13 that ends.
"""


def ranks(folder, mode):
    return [json.loads(out) for out in run_ranks(RANKS, folder, mode, 2)]


@pytest.mark.parametrize("mode", ["attached first", "attached after", "bucket views", "accumulation", "clipped",
                                  "forgotten scale given", "sum of a sum", "own TCP"])
def test_averages_over_ranks_are_not_told(tmp_path, mode):
    assert ranks(tmp_path, mode) == [[[], {}, False]] * 2


@pytest.mark.parametrize("mode", ["summed", "summed, global"])
def test_sums_over_ranks_of_a_mean_are_told(tmp_path, mode):
    for texts, reasons, _ in ranks(tmp_path, mode):
        assert len(texts) == 1 and "2 times the mean over the ranks" in texts[0] and reasons == {}


def test_a_forgotten_loss_scale_is_told_on_all_ranks(tmp_path):
    for texts, reasons, _ in ranks(tmp_path, "forgotten scale"):
        assert len(texts) == 1 and "1/1024 of" in texts[0] and reasons == {}


def test_ranks_agree_on_layers_that_keep_their_gradients(tmp_path):
    (silent, reasons, kept), (texts, others, kept_there) = ranks(tmp_path, "other input on one rank")
    assert silent == [] and len(texts) == 1 and "layer 'body'" in texts[0]
    assert list(reasons) == list(others) == ["body"] and kept and kept_there
