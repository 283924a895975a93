"""Secrets of the environment, of git and of the configuration are in nothing that is written or shown: records, logs,
tables, pages, the doctor's answer. Each secret here is a canary, which is looked for in every byte.
"""

import json
import os
from pathlib import Path

import pytest
from cli.calling import call, environment, invoked
from kept import installed, record_paths

CANARIES = {
    "TORCHINDUCTOR_REDIS_URL": "redis://user-canary:canary-redis@cache.example:6379/0",
    "TORCHINDUCTOR_REMOTE_KEY": "canary-remote-key",
    "TORCH_HUB_TOKEN": "canary-hub",
    "NCCL_SECRET_THING": "canary-nccl",
    "NCCL_NET_PLUGIN_AUTH": "canary-auth",
    "NCCL_DEBUG_FILE": "/home/canary-person/nccl.log",
    "NVTE_CUSTOM": "canary-nvte",
    "OMP_TOOL_LIBRARIES": "/home/canary-person/tool.so",
    "PYTORCH_SOMETHING_NEW": "canary-new",
    "GLOO_SOMETHING": "https://canary-user:canary-gloo@host/path",
    "AWS_SECRET_ACCESS_KEY": "canary-aws",
    "HF_TOKEN": "canary-hf",
    "DATABASE_PASSWORD": "canary-database",
    "GITHUB_TOKEN": "canary-github",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "remote.origin.url",
    "GIT_CONFIG_VALUE_0": "https://canary-git:canary-remote@example.org/repository.git",
    "CUDA_VISIBLE_DEVICES": "",
}
RUN = ("--gpus", "1", "--batch-size", "2", "--rounds", "1", "--warmup", "1", "--steps", "3", "--min-time", "0.01")
SMALL = ("--workload", "vit-micro", "--compile", "off")


def assert_none(folder: Path, *texts: str) -> None:
    for text in texts:
        assert "canary" not in text
    found = [path for path in folder.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
    assert found == []
    assert not [path for path in folder.rglob("*") if "canary" in path.name]


@pytest.mark.faults
def test_a_run_its_tables_and_its_page_hold_none(tmp_path):
    ran = call(tmp_path, "run", "--mode", "baseline-bf16", *SMALL, *RUN, **CANARIES)
    assert ran.code == 0, ran.stderr
    (record,) = record_paths(tmp_path / "results")
    settings = json.loads(record.read_text())["environment"]["variables"]
    shown = [call(tmp_path, *words, **CANARIES) for words in (
        ("compare", "cpu"), ("compare", "cpu", "--format", "json"), ("explain", record.stem), ("report", "cpu"),
        ("results", "verify"), ("run", "--dry-run"),
    )]  # fmt: skip

    assert settings["TORCHINDUCTOR_REDIS_URL"] == "(set)"
    assert [one.code for one in shown] == [0] * len(shown), shown
    assert_none(tmp_path, ran.stdout, ran.stderr, *(text for one in shown for text in (one.stdout, one.stderr)))


QUOTES = '''
import os
from outside_plugins import Polite
SECRET = "TORCHINDUCTOR_REDIS_URL TORCH_HUB_TOKEN AWS_SECRET_ACCESS_KEY HF_TOKEN DATABASE_PASSWORD".split()
class Quotes(Polite):
    """Fails as a library does that cannot reach its cache, with all that it knows."""
    name = "outside-quotes"
    def convert(self, model):
        known = [os.environ[name] for name in SECRET]
        raise RuntimeError(f"cannot connect: {known!r} " + "m" * 3_000_000 + " \\udcff \\x1b[31m")
'''


@pytest.mark.faults
def test_a_run_that_fails_with_all_that_it_knows_leaves_none(tmp_path, outside_site):
    site = tmp_path.parent / f"{tmp_path.name}-site"
    installed(site, "quotes", QUOTES, "[fp8bench.modes]\noutside-quotes = quotes:Quotes\n")
    path = f"{site}{os.pathsep}{outside_site}"
    ran = call(tmp_path, "run", "--mode", "outside-quotes", *SMALL, *RUN, PYTHONPATH=path, **CANARIES)
    (record,) = record_paths(tmp_path / "results")
    (log,) = (tmp_path / "results").rglob("*.log")

    assert ran.code == 5, ran.stderr
    assert json.loads(record.read_text())["cause"] == "crash"
    assert len(record.read_bytes()) < 100_000
    assert len(log.read_bytes()) < 3_000_000
    assert_none(tmp_path, ran.stdout, ran.stderr)
    assert "\x1b" not in log.read_text() + ran.stderr


@pytest.mark.faults
def test_the_doctor_shows_none(tmp_path):
    for form in ("table", "json"):
        shown = call(tmp_path, "doctor", "--format", form, **CANARIES)
        assert shown.stdout
        assert_none(tmp_path, shown.stdout, shown.stderr)


@pytest.mark.parametrize(
    "address",
    [
        "s3://AKIA:canary-password@bucket/results",
        "gs://canary-user:canary-password@bucket",
        "ftp://canary-user:canary-password@host/path",
        "ssh://me:canary-password@",
    ],
)
@pytest.mark.parametrize("by", ["flag", "variable", "file"])
def test_a_password_in_an_address_is_in_no_message(address, by, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(f"results_dir: {address}\n")
    words = {"flag": ["--results-dir", address], "variable": [], "file": ["--config", "config.yaml"]}[by]
    if by == "variable":
        monkeypatch.setenv("FP8BENCH_RESULTS_DIR", address)
    with pytest.raises(Exception, match=r"\*\*\*") as caught:
        invoked("run", "--dry-run", *words)

    assert "canary-password" not in str(caught.value)


def test_canaries_reach_a_process_that_is_started(monkeypatch):
    """Or the tests above would prove nothing."""
    assert environment(**CANARIES)["HF_TOKEN"] == "canary-hf"
