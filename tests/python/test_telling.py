"""What is done is said once, and warned of where it is nothing, or little."""
import logging
import math
import re

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from dkfac._preconditioner import Preconditioner
from dkfac.torch._consistency import Consistency
from dkfac.torch._coverage import number, percent
from dkfac.torch._gradients import Gradients
from dkfac.torch._rejections import OFTEN, REJECTED, WINDOW
from dkfac.torch._setup import Setup
from dkfac.torch._telling import Telling
from support import told
from test_ranks import run_ranks


def conv_net():
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.PReLU(4), nn.Flatten(), nn.Linear(64, 10))


def train(model, x, steps=1, optimizer=None, kfac=None, loss=lambda out: out.square().mean(), **options):
    """Attaches, unless it is given a preconditioner, and trains. Returns it with the optimizer."""
    if kfac is None:
        optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.01)
        kfac = dkfac.attach(model, optimizer, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()
    return kfac, optimizer


@pytest.fixture
def lines(caplog):
    """What was logged of a summary."""
    caplog.set_level(logging.INFO, logger="dkfac.torch")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "dkfac.torch" and r.levelno == logging.INFO]


def test_the_first_step_with_statistics_says_what_is_done(lines):
    model, x = conv_net(), torch.randn(6, 1, 6, 6)
    with told(share=True) as texts:
        kfac, optimizer = train(model, x, 0, statistics_interval=2, inverse_interval=8, damping=0.25, skip_layers="PReLU")
        assert lines() == []
        train(model, x, 1, optimizer, kfac)
        said, = lines()
        train(model, x, 4, optimizer, kfac)
    assert lines() == [said] and texts == []
    total = sum(p.numel() for p in model.parameters())
    assert said.startswith(f"[dkfac] curvature of {100 * (total - 4) / total:.1f} % of {total} trained parameters in 3 "
                           "layers (factors: 4 ")
    for part in ("normalisations: 1)", f"without: {400 / total:.1f} % named in skip_layers (2)",
                 "damping 0.25, statistics every 2 steps, inverses every 8 steps"):
        assert part in said, part
    flops, = re.search(r"cost: ([\d.]+) kFLOP of statistics and inverses when they are due$", said).groups()
    assert float(flops) > 0 and kfac.summary() == said[len("[dkfac] "):]
    kfac.damping, kfac.statistics_interval = 0.5, 1
    assert "damping 0.5, statistics every step" in kfac.summary()


def test_memory_is_that_of_the_state_and_of_the_buffers():
    kfac, _ = train(conv_net(), torch.randn(6, 1, 6, 6))
    kept, buffers = re.search(r"memory ([\d.]+) KiB and ([\d.]+) KiB of buffers", kfac.summary()).groups()
    assert float(kept) == pytest.approx(kfac.memory_usage()["total"] / 1024, abs=0.3)  # Its numbers, one decimal.
    assert float(buffers) > 0


def test_forms_of_factors():
    model = nn.Sequential(nn.Embedding(30, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    x = torch.arange(24).reshape(4, 6)
    for method, shown in (("eigen", "factors: 3 eigen, 1 diagonal; normalisations: 1"),
                          ("cholesky", r"factors: 3 (inverse|Cholesky), 1 diagonal; normalisations: 1")):
        kfac, _ = train(model, x, inverse_method=method)
        assert re.search(shown, kfac.summary())
        kfac.detach()
    kfac, _ = train(nn.Sequential(nn.Linear(4, 4), nn.PReLU(), Gain(5)), torch.randn(3, 4))
    assert re.search(r"factors: 4 \w+; diagonals: 2, of which 1 by the gradient\)", kfac.summary())


class Tied(nn.Module):
    """A table whose weight is also that of the head, and cross attention, whose projection is used in parts."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight
        self.attention, self.unused = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(7, 3)
        self.frozen, self.named = nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        h = self.table(x)
        h = self.attention(h, h.flip(1), h.flip(1))[0]
        return self.head(self.named(self.frozen(h)))


def test_parameters_of_another_model_are_counted():
    part, rest = nn.Linear(4, 3), nn.Linear(3, 2)
    for owned, said in ((rest, True), (part, False)):
        optimizer = torch.optim.SGD([*part.parameters(), *owned.parameters()][:2 + 2 * said], lr=0.1)
        text = dkfac.attach(part, optimizer).summary()
        assert (". 8 of the optimizer's are none of this model's, and have no curvature. " in text) == said
        optimizer._dkfac.detach()


def test_every_parameter_is_counted_once():
    model, x = Tied(), torch.arange(12).reshape(3, 4)
    kfac, _ = train(model, x, skip_layers="named")
    kinds = {"attention": 4 * 8 * 8 + 4 * 8, "table": 160, "unused": 24, "named": 72}
    total = sum(kinds.values())
    text = kfac.summary()
    assert text.startswith(f"curvature of {percent(kinds['attention'] + kinds['table'], total)} of {total} trained "
                           "parameters in 5 layers")  # Rows of queries, of keys, of values; their output; the table.
    for reason, name in (("used by no pass so far (unused)", "unused"), ("named in skip_layers (named)", "named")):
        assert f"{percent(kinds[name], total)} {reason}" in text
    assert ". 72 are frozen. " in text


def test_layers_that_come_later_are_said_anew(lines):
    model, x = conv_net(), torch.randn(6, 1, 6, 6)
    model[0].requires_grad_(False)
    kfac, optimizer = train(model, x)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters()})
    with pytest.warns(UserWarning, match="trained from this pass on"):
        train(model, x, 2, optimizer, kfac)
    assert [line.split(" layers")[0][-1] for line in lines()] == ["3", "4"]


def test_no_curvature_at_all_is_told():
    model = nn.Sequential(nn.PReLU(4), nn.GroupNorm(2, 4))
    with told(share=True) as texts:
        train(model, torch.randn(5, 4), 3, skip_layers=["PReLU", "GroupNorm"])
    text, = texts
    assert "no parameter has curvature, so every step is that of the optimizer alone" in text
    assert "100.0 % named in skip_layers (1, 0)" in text and "can have curvature: Linear, Conv2d" in text
    with told(share=True) as texts:
        train(nn.Sequential(nn.PReLU(4), nn.Linear(4, 4)), torch.randn(5, 4), 3, skip_layers="PReLU")
    assert texts == []  # Control.


class Gain(nn.Module):
    """A Linear of 20 parameters, and some that no function applies."""

    def __init__(self, others):
        super().__init__()
        self.linear, self.gain = nn.Linear(4, 4), nn.ParameterList([nn.Parameter(torch.ones(others))])

    def forward(self, x):
        return self.linear(x) * self.gain[0].mean()


class Sparse(nn.Module):
    """A Linear of 20 parameters, and an Embedding that has no curvature."""

    def __init__(self, others):
        super().__init__()
        self.linear, self.gain = nn.Linear(4, 4), nn.Embedding(others, 1, max_norm=2.0)

    def forward(self, x):
        return self.linear(x) * self.gain(torch.zeros(1, dtype=torch.int64)).mean()


@pytest.mark.parametrize("others, options, small", [(21, {}, True), (20, {}, False), (21, {"skip_layers": "^gain"},
                                                                                      False)])
def test_a_small_share_is_told(others, options, small):
    with told(share=True) as texts:
        kfac, _ = train(Sparse(others), torch.randn(5, 4), 3, **options)
    assert len(texts) == small
    if small:
        assert f"only {percent(20, 41)} of 41 trained parameters have curvature: " in texts[0]
        assert "Embedding with max_norm (gain)" in texts[0] and "skip_layers" in texts[0]
    assert f"curvature of {percent(20, 20 + others)} of" in kfac.summary()


def diverge(form, steps, weights, recover_at=(), found=False):
    """Steps whose loss is not finite, but for some. Returns what was told; `found`: after the preconditioner."""
    torch.manual_seed(3)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if form == "KFAC":
        optimizer = dkfac.KFAC(model, 0.01)
    kfac = dkfac.KFACPreconditioner(model) if form == "KFACPreconditioner" else None
    made = dkfac.attach(model, optimizer) if form == "attach" else kfac or optimizer
    if weights == "broken":
        with torch.no_grad():
            model[2].weight[0, 0] = math.nan
    with told(share=True) as texts:
        for turn in range(steps):
            optimizer.zero_grad()
            factor = 1.0 if turn in recover_at or weights == "broken" else math.inf
            (model(x).square().mean() * factor).backward()
            if kfac is None or not kfac.step().rejected:
                optimizer.step()
    return (made, texts) if found else texts


@pytest.mark.parametrize("form", ["attach", "KFAC", "KFACPreconditioner"])
def test_steps_that_are_rejected_in_a_row_are_told_once(form):
    first, text = diverge(form, 25, "finite")
    assert first.startswith("[dkfac] the step was rejected, and changed nothing: not finite is a statistic and a gradient")
    assert text.startswith("[dkfac] 10 steps in a row were rejected, and changed nothing. Not finite is a statistic and "
                           "a gradient; all weights are finite")
    _, text = diverge(form, REJECTED, "broken")
    assert "'2.weight' of the model is not finite itself" in text and "checkpoint" in text
    assert len(diverge(form, REJECTED - 1, "broken")) == 1  # Controls.
    assert len(diverge(form, REJECTED + 2, "finite", recover_at=(0, 6))) == 1 and not diverge(form, 2, "finite", (0, 1))


@pytest.mark.parametrize("form", ["attach", "KFAC", "KFACPreconditioner"])
def test_a_share_of_rejected_steps_is_told_once_and_counted(form):
    """Every 15th of 200 steps is 13 of them, every 25th is 8."""
    for every, texts in ((15, 2), (25, 1)):
        kfac, said = diverge(form, WINDOW + 40, "finite", recover_at=[t for t in range(WINDOW + 40) if t % every],
                             found=True)
        assert len(said) == texts and kfac.rejected_steps == len(range(0, WINDOW + 40, every))
        assert f"{kfac.rejected_steps} of {WINDOW + 40} steps were rejected" in kfac.summary()
    _, text = diverge(form, 40, "finite", recover_at=[t for t in range(40) if t % 3])
    assert text.startswith("[dkfac] 11 of the last 31 steps were rejected, and changed nothing: not finite was a statistic "
                           "in 11 of them, a gradient in 11 of them; all weights are finite") and OFTEN * WINDOW == 10


def test_a_second_row_of_rejected_steps_is_told_again():
    assert len(diverge("attach", 35, "finite", recover_at=(14,))) == 3


RANKS = """
import logging, sys, warnings, torch
import torch.distributed as dist
import dkfac.torch as dkfac
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("dkfac.torch").addHandler(Keep())
logging.getLogger("dkfac.torch").setLevel(logging.INFO)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GroupNorm(2, 6), torch.nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kfac = dkfac.attach(model, optimizer, skip_layers=["0", "1", "2"], statistics_interval=1, inverse_interval=1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for turn in range(14):
        optimizer.zero_grad()
        (model(torch.ones(5, 4)).square().mean() * (1 if turn < 2 else float("inf"))).backward()
        optimizer.step()
said = [str(w.message) for w in caught if "[dkfac]" in str(w.message)]
print(len(lines), sum("no parameter has curvature" in s for s in said), sum("in a row were" in s for s in said), len(said))
print(kfac.summary().count(f"on rank {rank} of 2"), "statistics every step" in kfac.summary())
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kfac = dkfac.attach(model, optimizer, split_wide=True)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(5, 4)).square().mean().backward()
        optimizer.step()
told = "split_wide is set, and no factor is inverted by several ranks: none is wide enough"
print(sum(told in str(w.message) for w in caught))
dist.destroy_process_group()
"""


def test_one_rank_speaks_for_all(tmp_path):
    assert run_ranks(RANKS, tmp_path, "", 2) == ["1 1 1 3\n1 True\n1", "0 0 0 0\n1 True\n0"]


def test_what_it_adds_to_a_step_is_told_once_it_is_measured():
    """A step of a layer of 4 x 4, with work of the loss or without."""
    adds = []
    for size in (1, 500):
        work = torch.randn(size, size)
        kfac, _ = train(nn.Linear(4, 4), torch.randn(8, 4), 60, statistics_interval=3, inverse_interval=6,
                        loss=lambda out, work=work: out.square().mean() + 0 * (work @ work).sum())
        said, = re.search(r"due; K-FAC adds ([\d.]+) to a step on average$", kfac.summary()).groups()
        adds.append(float(said))
        assert adds[-1] == round(kfac.last_report.overhead, 2)
    assert adds[1] < adds[0] < 1000


class Clock:
    """In place of that of the package: goes on where it is told to."""

    def __init__(self, kfac, monkeypatch):
        self.now, self.given = 0.0, []
        kfac._recorder.own_time.clock = lambda: self.now
        kfac._recorder.own_time.take()  # The way back of the step before.
        step = Preconditioner.step
        monkeypatch.setattr(Preconditioner, "step", lambda self_, grads, lr=None, reject=False, stop=False, own_seconds=0.0: (
            self.given.append(own_seconds), self.spend(1000), step(self_, grads, lr, reject, stop, own_seconds))[-1])

    def spend(self, seconds, result=None):
        self.now += seconds
        return result

    def lengthen(self, monkeypatch, owner, name, seconds):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: self.spend(seconds, function(*args, **kwargs)))


def test_the_library_is_told_what_the_package_takes_of_a_step(monkeypatch):
    """Hooks, the way to the step of the library and the way back, without the passes, that step and the optimizer's."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(8, 4)
    kfac, optimizer = train(model, x, 3, statistics_interval=100, inverse_interval=100)
    clock = Clock(kfac, monkeypatch)
    clock.lengthen(monkeypatch, Setup, "samples", 1)
    clock.lengthen(monkeypatch, Consistency, "search", 2)
    clock.lengthen(monkeypatch, Gradients, "collect", 4)
    clock.lengthen(monkeypatch, Telling, "step", 8)
    clock.lengthen(monkeypatch, torch.optim.SGD, "zero_grad", 100)
    train(model, x, 3, optimizer, kfac, loss=lambda out: clock.spend(200, out.square().mean()))
    assert clock.given == [1 + 2 + 4, 8 + 1 + 2 + 4, 8 + 1 + 2 + 4]


@pytest.mark.defaults
def test_what_the_package_takes_of_a_step_decides_on_the_intervals(lines, monkeypatch):
    """Control: where it is not counted, both are 1, whatever the passes take."""
    def run(seconds):
        kfac, optimizer = train(nn.Linear(4, 4), torch.randn(8, 4), 0, overhead=1e9)
        clock = Clock(kfac, monkeypatch)
        monkeypatch.setattr(Gradients, "others_finite", lambda self: clock.spend(seconds, True))
        train(kfac.model, torch.randn(8, 4), 81, optimizer, kfac)
        return kfac
    kfac = run(0.0)
    assert (kfac.statistics_interval, kfac.inverse_interval) == (1, 1)
    kfac = run(3600.0)  # More than all of the step, of which nothing is left for the passes.
    assert kfac.statistics_interval >= 20 and kfac.inverse_interval >= 100
    assert kfac.last_report.overhead >= kfac.last_report.fixed_overhead > 1e9
    said = lines()[-1]
    assert re.search(r"more than overhead=1e\+09, which no intervals keep: [0-9.]+ of it is in every step, for products "
                     r"with inverses and for hooks\. Enlarge the batch, .*, or allow more, e\.g\. overhead=", said)


@pytest.mark.defaults
def test_a_choice_of_intervals_is_told_with_how_it_is_repeated(lines):
    """The run that is told has equal bits; control: one without the choice."""
    x = torch.randn(8, 4, dtype=torch.float64)

    def run(overhead=None, after=None):
        torch.manual_seed(0)
        model = nn.Linear(4, 4).double()
        options = {"statistics_interval": 10, "inverse_interval": 50} if overhead is None else {
            "overhead": overhead}
        kfac, optimizer = train(model, x, 80, **options)
        if after is not None:
            kfac.statistics_interval, kfac.inverse_interval = after
        train(model, x, 30, optimizer, kfac)
        return kfac, model.weight.detach()
    kfac, chosen = run(1e9)
    assert "every 50 steps (provisional until overhead=1e+09 chooses)" in lines()[0]
    found = [line for line in lines() if "from step" in line]
    assert len(found) == 1 and re.fullmatch(
        r"\[dkfac\] from step 81 on statistics every step, inverses every step, by which K-FAC adds [0-9.]+ to a step\. "
        "The same run again: statistics_interval=10, inverse_interval=50 in place of overhead, and statistics_interval = "
        "1 and inverse_interval = 1 after step 80", found[0])
    assert (kfac.statistics_interval, kfac.inverse_interval) == (1, 1)
    assert "statistics every step (by overhead=1e+09)" in kfac.summary() and "provisional" not in kfac.summary()
    assert torch.equal(run(None, (1, 1))[1], chosen) and not torch.equal(run()[1], chosen)
    kfac, _ = run(1e-9)
    assert kfac.statistics_interval >= 20 and kfac.inverse_interval >= 100
    assert "more than overhead=1e-09, which no intervals keep" in lines()[-1]


def test_numbers_for_people():
    assert [number(n) for n in (7, 999, 1234, 999600, 25.6e6, 3e12)] == ["7", "999", "1.23 k", "1 M", "25.6 M", "3 T"]
    assert [percent(*n) for n in ((0, 9), (9, 9), (1, 10**5), (99999, 10**5), (1, 3), (0, 0))] == [
        "0.0 %", "100.0 %", "0.001 %", "99.9 %", "33.3 %", "0.0 %"]


def test_before_the_first_step_nothing_has_been_measured():
    model = nn.Linear(4, 4)
    kfac = dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sentence = "nothing has been measured yet: forms, memory and cost are known after the first step"
    assert kfac.summary().endswith(sentence)
    kfac, _ = train(nn.Linear(4, 4), torch.randn(8, 4), 1)
    assert sentence not in kfac.summary()


def test_an_overhead_without_a_step_to_compare_with_is_told_as_too_low():
    kfac, _ = train(nn.Linear(4, 4), torch.randn(8, 4), 40, statistics_interval=1, inverse_interval=1)
    assert re.search(r"K-FAC adds more than [\d.]+ to a step: .*no step is without statistics$", kfac.summary())


def test_the_report_calls_diagonals_by_their_name():
    """Control: normalisations; columns stay below each other."""
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.PReLU(6), nn.BatchNorm1d(6))
    kfac, _ = train(model, torch.randn(8, 4), 1)
    shapes = {row.split()[0]: row for row in kfac.report().splitlines()[1:5]}
    assert "diagonal of 6" in shapes["2"] and "norm" not in shapes["2"] and "shift only" not in kfac.report()
    assert "layer norm 6" in shapes["1"] and "batch norm 6" in shapes["3"]
    assert len({len(row) for row in shapes.values()}) == 1
