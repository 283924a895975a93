"""How far projections are off the published study, and that the page says so."""

import re
from pathlib import Path

import pytest
from cli.calling import call

from fp8bench.pricing.catalog import load
from fp8bench.scaling.check import SHOWN, UNITS_A_STEP, cases, caution, document, worst
from fp8bench.scaling.published import records_published
from fp8bench.schema.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text()
MADE = re.findall(r"<!-- made by: fp8bench (.+?) -->\n(.+?)\n<!-- end -->", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def found():
    return cases(records_published(), load())


def test_every_published_size_is_projected_from_one_node(found):
    assert len(found) == 4 * 5 * len(UNITS_A_STEP)
    assert {one.nodes for one in found} == {2, 4, 8, 16, 32}


def test_off_is_what_lies_outside_the_range(found):
    for one in found:
        low, high = one.projected
        assert low <= high <= 1.0
        if one.off == 0:
            assert low <= one.published <= high
        else:
            assert one.published == pytest.approx((low if one.off < 0 else high) + one.off)


def test_a_ring_explains_little_of_what_32_nodes_lost(found):
    """The finding that the page states: the model is no better than this."""
    furthest = worst(found, SHOWN)
    assert (furthest.workload, furthest.mode, furthest.nodes) == ("llm-1b", "baseline-bf16", 32)
    assert -0.15 < furthest.off < -0.13
    assert all(abs(one.off) < 0.03 for one in found if one.nodes <= 8 and one.units_a_step == SHOWN)


def test_every_projection_is_shown_with_the_worst_of_it(found):
    assert "15 points of one node's rate" in caution(found).text
    assert caution(()) is None


def test_without_published_figures_there_is_nothing_to_check():
    with pytest.raises(UsageError, match="no published throughput"):
        document(())


def test_the_page_has_the_check_and_both_tables():
    assert [command.split()[0] for command, _ in MADE] == ["scaling"] * len(MADE)
    assert any("--check" in command for command, _ in MADE)
    assert sum("--workload llm" in command for command, _ in MADE) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), MADE, ids=[command for command, _ in MADE])
def test_a_table_of_the_page_is_what_its_command_prints(command, shown):
    done = call(ROOT, *command.split(), "--format", "markdown")
    assert done.code == 0, done.stderr
    assert done.stdout.strip() == shown
