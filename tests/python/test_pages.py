"""The Python of the pages runs as it is written there."""
import copy
import re

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import run_python, tree

PAGE = "docs/pytorch.md"
pytestmark = pytest.mark.skipif(not (tree() / PAGE).is_file(), reason="no pages beside the tests")
MARKS = {  # What stands in one snippet alone, by the name of its test.
    "two lines": "as dkfac\nkfac = dkfac.attach(model, optimizer)", "Trainer": "transformers.Trainer(",
    "Lightning": "lightning.LightningModule", "Lightning, by a callback": "lightning.Callback",
    "accelerate": "accelerate.Accelerator(",
    "fisher_backward": 'fisher="monte_carlo")', "compile": "torch.compile(", "fully_shard": "fully_shard(",
    "KFACPreconditioner": "dkfac.KFACPreconditioner(", "quadratic": 'step_length="quadratic"', "Join": "join.Join("}


def snippets(page):
    """{name: text} of the Python on a page."""
    texts = re.findall(r"^```python\n(.*?)^```", (tree() / page).read_text(), re.MULTILINE | re.DOTALL)
    names = [[name for name, mark in MARKS.items() if mark in text] for text in texts]
    assert all(len(found) == 1 for found in names), f"{page} has Python without a test of its own"
    return dict(zip(sum(names, []), texts))


def run(name, page=PAGE, **names):
    """Runs a snippet in a space with these names. Returns the space."""
    space = dict(names, torch=torch, dkfac=dkfac)
    exec(compile(snippets(page)[name], f"{page}: {name}", "exec"), space)
    return space


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batches():
    torch.manual_seed(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8), torch.arange(64) % 3), 16)


def trained(kfac, steps):
    """Whether a preconditioner took part in each step, with curvature of all of its layers."""
    return kfac.steps == steps and kfac.last_report.updated and kfac.reasons() == {}


def test_every_snippet_has_a_test():
    assert list(snippets("README.md")) == ["two lines"]
    assert list(snippets(PAGE)) == list(MARKS)


@pytest.mark.parametrize("page", ["README.md", PAGE])
def test_two_lines(page):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kfac = run("two lines", page, model=model, optimizer=optimizer)["kfac"]
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert trained(kfac, 4)
    kfac.detach()
    optimizer.step()
    assert not trained(kfac, 5)  # Control.


def test_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4))
    arguments = transformers.TrainingArguments(str(tmp_path), max_steps=3, use_cpu=True, report_to=[],
                                               save_strategy="no", disable_tqdm=True)
    data = [{"pixel_values": torch.randn(3, 8, 8), "labels": i % 2} for i in range(32)]
    kfac = run("Trainer", model=model, arguments=arguments, data=data, transformers=transformers)["kfac"]
    assert kfac.steps == 3 and kfac.last_report.updated and len(kfac.curved()) > len(kfac.reasons())


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")
    kind = run("Lightning", lightning=lightning)["Classifier"]

    def fit(module, epochs=1, path=None):
        trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path)
        trainer.fit(module, batches(), ckpt_path=path)
        return trainer
    module = kind(net())
    for _ in range(2):
        trainer = fit(module)
        assert trained(module.kfac, 4)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    resumed = kind(net())
    fit(resumed, 2, str(tmp_path / "one.ckpt"))
    assert trained(resumed.kfac, 8) and resumed.saved is None
    other = copy.deepcopy(module)  # As averages of the weights are made in a run.
    assert other.kfac is None and module.kfac is not None


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert trained(run("accelerate", accelerate=accelerate, model=model, optimizer=optimizer,
                       loader=batches())["kfac"], 4)


def test_fisher_backward():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert trained(run("fisher_backward", model=model, optimizer=optimizer, loader=batches())["kfac"], 4)


def test_quadratic():
    if not hasattr(torch, "func"):
        pytest.skip("refused before torch 2.0")
    kfac = run("quadratic", model=net(), loader=batches())["kfac"]
    assert trained(kfac.preconditioner, 4) and kfac.model_step.rate > 0


def test_compile():
    if not hasattr(getattr(torch, "compiler", None), "set_stance"):
        pytest.skip("this version of torch has no torch.compiler.set_stance()")
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = next(iter(batches()))
    space = run("compile", model=model, optimizer=optimizer, x=x, y=y)
    space["loss"].backward()
    optimizer.step()
    assert trained(space["kfac"], 1)
    space["kfac"].detach()


SHARDED = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
import torch.distributed.fsdp
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
model.blocks = [model[0]]
{snippet}
torch.nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.arange(4) % 3).backward()
kfac.optimizer.step()
print(kfac.last_report.updated, kfac.reasons())
dist.destroy_process_group()
"""


def test_sharded_weights(tmp_path):
    if not (hasattr(torch.distributed, "device_mesh") and hasattr(torch.distributed.fsdp, "fully_shard")):
        pytest.skip("this version of torch has no fully_shard()")
    code = SHARDED.replace("{snippet}", snippets(PAGE)["fully_shard"])
    assert run_python(code, str(tmp_path / "store")).split() == ["True", "{}"]


def test_the_interface_of_kfac_pytorch():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = next(iter(batches()))
    first, rest = snippets(PAGE)["KFACPreconditioner"].split("\n", 1)  # The forward pass comes between.
    space = {"model": model, "optimizer": optimizer, "dkfac": dkfac}
    exec(first, space)
    space["loss"] = nn.functional.cross_entropy(model(x), y)
    exec(rest, space)
    assert trained(space["preconditioner"], 1)


JOIN = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
kfac = dkfac.attach(ddp, optimizer)
loader = [(torch.randn(4, 8), torch.arange(4) % 3)] * 3
{snippet}
print(kfac.steps)
dist.destroy_process_group()
"""


def test_join(tmp_path):
    passes = "optimizer.zero_grad(); torch.nn.functional.cross_entropy(ddp(x), y).backward()"
    snippet = snippets(PAGE)["Join"].replace("...", passes)
    assert snippet.count(passes) == 1
    code = JOIN.replace("{snippet}", "from torch.distributed.algorithms import join\n" + snippet)
    assert run_python(code, str(tmp_path / "store")).split() == ["3"]
