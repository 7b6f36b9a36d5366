"""Statistics of the samples of the rank that inverts them, under DistributedDataParallel."""
import pytest

from test_ranks import run_ranks

PROGRAM = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
rank, local = int(sys.argv[1]), sys.argv[3] == "local"
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 5, bias=False), torch.nn.Tanh(), torch.nn.Linear(5, 2, bias=False)).double()
inputs = [torch.randn(4, 3, dtype=torch.float64) for _ in range(2)]
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kfac = dkfac.attach(model, optimizer, damping=0.1, new_weight=1.0, low_rank=False, local_statistics=local)
for _ in range(2):
    optimizer.zero_grad()
    weight = net[0].weight.detach().clone()
    model(inputs[rank]).square().sum(1).mean().backward()
    optimizer.step()
parts = [(x.T @ x / 4, torch.tanh(x @ weight.T)) for x in inputs]
for name, statistics in (("module.0", [p[0] for p in parts]), ("module.2", [p[1].T @ p[1] / 4 for p in parts])):
    found = kfac.factors(name).get("a_average")
    if found is not None:
        expected = statistics[rank] if local else sum(statistics) / 2
        print(name, bool((found - expected).abs().max() <= 64 * torch.finfo(torch.float64).eps * expected.abs().max()))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("mode", ["local", "of all"])
def test_factors_are_those_of_the_samples_of_their_rank_or_of_all(tmp_path, mode):
    told = sorted("\n".join(run_ranks(PROGRAM, tmp_path, mode, 2)).split("\n"))
    assert [line for line in told if line] == ["module.0 True", "module.2 True"]
