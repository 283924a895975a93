"""What torch.compile has done, by torch's own counters, after real compilations on a CPU."""

import operator
import sys
from types import SimpleNamespace

import pytest
import torch

from fp8bench.worker.counters import MAX_REASONS, REASON_LENGTH, Compilations, compilations

pytestmark = pytest.mark.slow


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    yield lambda function: torch.compile(function, backend="aot_eager")
    torch._dynamo.reset()


COUNTED = operator.attrgetter("frames", "graphs", "split_graphs", "graph_breaks")


@pytest.fixture
def since():
    """What was compiled since the test began."""
    before = COUNTED(compilations())
    return lambda: tuple(map(operator.sub, COUNTED(compilations()), before))


def test_a_process_that_never_loaded_torch_compile_has_compiled_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert compilations() == Compilations(0, 0, 0, 0, ())


def test_a_graph_break_is_counted_with_its_reason(compiled, since):
    def breaks(x):
        x = torch.tan(x)
        torch._dynamo.graph_break()
        return x + 1

    compiled(breaks)(torch.ones(4))
    frames, graphs, _, graph_breaks = since()
    assert (graphs, graph_breaks) == (2, 1)
    assert frames >= 1
    assert compilations().graph_break_reasons


def test_reasons_are_a_few_short_lines(monkeypatch):
    breaks = {f"reason {number} {'x' * 500}\nand a traceback": 2 for number in range(20)}
    counters = {"frames": {"total": 3}, "stats": {"unique_graphs": 21}, "aot_autograd": {"total": 98}}
    spent = {"entire_frame_compile": 30.0, "entire_backward_compile": 4.0, "inductor_compile": 25.0}
    dynamo = SimpleNamespace(counters={**counters, "graph_break": breaks}, calculate_time_spent=lambda: spent)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
    found = compilations()
    assert COUNTED(found) == (3, 21, 98, 40)
    assert len(found.graph_break_reasons) == MAX_REASONS
    assert all(len(reason) == REASON_LENGTH and "\n" not in reason for reason in found.graph_break_reasons)
