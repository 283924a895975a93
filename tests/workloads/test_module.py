"""A plain torch.nn.Module of the user's own as a workload: what is made of its example, and each way to be wrong."""

import importlib
import re
import sys
from itertools import count
from textwrap import dedent

import pytest
import torch
from torch import nn

from fp8bench import registry
from fp8bench.modes.baseline import BaselineBF16
from fp8bench.schema.errors import UsageError
from fp8bench.worker.parity import prove
from fp8bench.worker.plugin import Batches

CPU = torch.device("cpu")
NUMBERS = count()

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 2, 2), nn.GELU(), nn.Flatten(), nn.Linear(64, 32), nn.GELU())
        self.head = nn.Linear(32, 8)

    def forward(self, inputs):
        return self.head(self.layers(inputs))

    {kind}
    def example({self}batch_size):
        return torch.randn(batch_size, 3, 4, 4), torch.zeros(batch_size, dtype=torch.int64)
"""
OF_IMAGES = NET.format(kind="@staticmethod", self="")

TEXT = """
import torch
from torch import nn

class Net(nn.Module):
    unit, causal = "tokens", True

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, tokens):
        return self.head(self.words(tokens))

    def example(self, batch_size):
        tokens = torch.arange(batch_size * 9).view(batch_size, 9) % 32
        return tokens[:, :-1], tokens[:, 1:]
"""


@pytest.fixture
def workload_of(tmp_path, monkeypatch):
    """The class of a workload whose module, in the current directory, has this text. The module's name is new."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine").mkdir()

    def of(text, called="Net"):
        name = f"net{next(NUMBERS)}"
        (tmp_path / "mine" / f"{name}.py").write_text(dedent(text))
        importlib.invalidate_caches()
        return registry.load(registry.find_workload(f"mine.{name}:{called}"))

    yield of
    for name in [name for name in sys.modules if name == "mine" or name.startswith("mine.")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "text",
    [OF_IMAGES, NET.format(kind="", self="self, "), NET.format(kind="@classmethod", self="cls, ")],
    ids=["static", "method", "class method"],
)
def test_batches_are_drawn_in_the_form_of_the_example_and_work_is_counted(text, workload_of):
    workload = workload_of(text)(data="device", seed=1)
    batch, again, other = (next(Batches(workload, 32, rank, CPU)) for rank in (0, 0, 1))
    assert (batch.inputs.shape, batch.inputs.dtype, batch.targets.shape) == ((32, 3, 4, 4), torch.float32, (32,))
    assert torch.equal(batch.inputs, again.inputs)
    assert not torch.equal(batch.inputs, other.inputs)
    assert set(batch.targets.tolist()) == set(range(8))
    assert (workload.unit, workload.units_per_step(32)) == ("samples", 32)
    forward = 2 * (4 * 16 * 12 + 64 * 32 + 32 * 8)
    assert workload.flops_per_step(32) == 32 * (3 * forward - 2 * 4 * 16 * 12)
    assert workload.parameters() == sum(one.numel() for one in workload.build(CPU).parameters())


def test_the_seed_decides_the_weights_and_the_file_is_part_of_the_work(workload_of):
    one, edited = workload_of(OF_IMAGES), workload_of(OF_IMAGES + "\n# changed\n")
    weights = [one(seed=seed).build(CPU).head.weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert {name for name in one().sizes() if one().sizes()[name] != edited().sizes()[name]} == {"source"}


def test_tokens_and_what_the_class_states_are_taken_and_labels_that_are_no_classes_stay(workload_of):
    workload = workload_of(TEXT)(data="device")
    batch = next(Batches(workload, 16, 0, CPU))
    assert (workload.unit, workload.causal, workload.units_per_step(4)) == ("tokens", True, 32)
    assert (batch.inputs.dtype, batch.inputs.shape) == (torch.int64, (16, 8))
    assert 16 < int(batch.inputs.max()) < 32
    assert torch.isfinite(workload.loss(workload.build(CPU), batch))
    padded = OF_IMAGES.replace("torch.zeros(batch_size", "torch.full((batch_size,), -100")
    batch = next(Batches(workload_of(padded)(data="device"), 16, 0, CPU))
    assert set(batch.targets.tolist()) == {-100}
    rates = OF_IMAGES.replace("super().__init__()", "super().__init__(); self.rate = torch.ones(1).item()")
    assert workload_of(rates)().build(CPU).rate == 1


@pytest.mark.slow
def test_tokens_pass_the_gate_and_samples_that_see_each_other_do_not(workload_of, process_group):
    """Of images, tests/launch/test_spawn_runs.py trains one."""
    proof = prove(BaselineBF16(), workload_of(TEXT)(data="device"), 0, CPU)
    assert proof.parity.passed, proof.parity.reason
    mixed = OF_IMAGES.replace("nn.Linear(64, 32)", "nn.Linear(64, 32), nn.BatchNorm1d(32)")
    with pytest.raises(Exception, match="samples of a batch see each other"):
        prove(BaselineBF16(), workload_of(mixed)(data="device"), 0, CPU)


@pytest.mark.parametrize(
    ("text", "what", "line", "remedy"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'", 1, "correct it"),
        ("x = 1\n1 / 0", "ZeroDivisionError", 2, "correct it"),
        ("from torch import nn\nclass Nett(nn.Module): pass", "Net is no torch.nn.Module of", 1, "Did you mean 'Nett'"),
        ("class Net: pass", "Net is no torch.nn.Module of", 1, "Name a class of it: a torch.nn.Module"),
        (OF_IMAGES.replace("example", "sample"), "has no method example", 5, "Return (inputs, labels)"),
        (OF_IMAGES.replace("__init__(self)", "__init__(self, width)"), "Net() fails: TypeError", 5, "defaults"),
        (OF_IMAGES.replace("nn.Linear(32, 8)", "nn.Linear(32, eight)"), "Net() fails: NameError", 9, "correct it"),
        (OF_IMAGES.replace("return torch.randn", "return torch.rain"), "example(16) fails: AttributeError", 16, "Corr"),
        (OF_IMAGES.replace(", torch.zeros(batch_size, dtype=torch.int64)", ""), "gives ([16, 3, 4, 4]", 5, "Return"),
        (OF_IMAGES.replace("randn(batch_size", "randn(4"), "gives ([4, 3, 4, 4]", 5, "batch_size"),
        (OF_IMAGES.replace("4, 4)", "4, 4).double()"), "torch.float64", 5, "float32"),
        (OF_IMAGES.replace("nn.Linear(64", "nn.Linear(65"), "forward fails on ([16, 3, 4, 4]", 12, "Correct it"),
        (OF_IMAGES.replace("(inputs))", "(inputs)).sum()"), "forward gives [], and not logits", 5, "classes"),
        (OF_IMAGES.replace("zeros(batch_size,", "zeros(batch_size, 3,"), "the cross entropy of its logits", 5, "Corr"),
    ],
)
def test_whatever_is_wrong_is_one_line_with_its_place_and_the_remedy(text, what, line, remedy, workload_of):
    with pytest.raises(UsageError) as refused:
        workload_of(text)
    said = str(refused.value)
    assert what in said
    assert re.search(rf"workload 'mine\.net\d+:Net': .+, at mine/net\d+\.py:{line}\. ", said)
    assert remedy in refused.value.remedy
    assert "\n" not in said


def test_a_module_that_is_not_there_is_said_and_the_class_of_the_workload_counts_as_the_users(workload_of):
    with pytest.raises(UsageError, match=r"No module named 'nowhere'\. Run this where the module is found"):
        registry.load(registry.find_workload("nowhere.net:Net"))
    found = workload_of(OF_IMAGES)
    assert not registry.is_built_in(found.__module__)
    assert issubclass(found.made, nn.Module)
