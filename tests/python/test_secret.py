"""The secret by which ranks over TCP prove to each other that they belong to a job."""
import pytest
import torch.distributed as dist

import dkfac
from dkfac._library import library
from dkfac.torch import _distributed

OURS = "of this job, 0123456789"


@pytest.fixture(autouse=True)
def no_secret(monkeypatch):
    monkeypatch.delenv("DKFAC_SECRET", raising=False)
    monkeypatch.delenv("DKFAC_SECRET_FILE", raising=False)


def test_one_is_required_long_enough_and_never_shown(monkeypatch):
    with pytest.raises(dkfac.InvalidArgument, match="a secret is required"):
        dkfac.Comm.tcp(1, 2, "127.0.0.1", 1, require_secret=True)
    for size in (1, 2):
        for wrong, text in (("", "secret is empty"), (20 * " ", "secret is empty"), (OURS.encode(), "must be a str")):
            with pytest.raises(dkfac.InvalidArgument, match=text):
                dkfac.Comm.tcp(0, size, "127.0.0.1", 1, secret=wrong)
        with pytest.raises(dkfac.InvalidArgument, match="the secret has 5 bytes"):
            dkfac.Comm.tcp(0, size, "127.0.0.1", 1, secret="short")
    monkeypatch.setenv("DKFAC_SECRET", "short")
    with pytest.raises(dkfac.InvalidArgument, match="DKFAC_SECRET has 5 bytes") as error:
        dkfac.Comm.tcp(1, 2, "127.0.0.1", 1)
    assert "short" not in str(error.value)
    assert dkfac.Comm.tcp(0, 1, "127.0.0.1", 1, secret=OURS).size == 1


def test_torch_tcp_passes_on_a_fresh_one_unless_there_is_one(monkeypatch):
    if not library().dkfac_comm_can_use_secrets():
        pytest.skip("this library was built without libcrypto")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        first, second = (_distributed._meeting()[2] for _ in range(2))
        assert len(first) == len(second) == 64 and first != second
        monkeypatch.setenv("DKFAC_SECRET", OURS)
        assert _distributed._meeting()[2] is None
    finally:
        dist.destroy_process_group()
