"""`fp8bench compare --kind`: what other commands kept, found among the runs and printed as they print it."""

import json

import pytest
from builders import at, measured
from report.made_gemm import gemm_record
from report.made_numerics import record as numerics_record

from fp8bench.schema.gemm import GemmRecord
from fp8bench.schema.numerics import NumericsRecord
from fp8bench.store import results

EARLIER, LATER, OTHER = (
    gemm_record(instance="p5", run_id=f"products-{name}", created_utc=at(minute), fingerprint={"shapes": shapes})
    for name, minute, shapes in (("earlier", 1, "a"), ("later", 2, "a"), ("other", 3, "b"))
)
ERRORS = numerics_record(instance="p5", minutes=4)


@pytest.fixture
def kept(tmp_path):
    """A run, three records of products and one of numerics, of one instance."""
    for record in (measured("p5"), EARLIER, LATER, OTHER, ERRORS):
        results.write(record, tmp_path / "results")
    return tmp_path / "results"


def test_each_kind_is_read_by_itself_and_comes_back_whole(kept):
    assert [record.kind for record, _ in results.read(kept, ["p5"]) if record.source == "measured"] == ["run"]
    assert results.read_kind(kept, ["p5"], GemmRecord) == [EARLIER, LATER, OTHER]
    assert results.read_kind(kept, ["p5"], NumericsRecord) == [ERRORS]
    assert results.read_kind(kept, ["p4d"], NumericsRecord) == []


def test_of_products_the_latest_of_each_fingerprint_is_shown_and_all_on_demand(kept, fp8bench_in):
    def shown(*flags):
        done = fp8bench_in("compare", "p5", "--kind", "gemm", "--format", "json", *flags)
        assert done.code == 0, done.stderr
        return [report["run_id"] for report in json.loads(done.stdout)]

    assert shown() == ["products-later", "products-other"]
    assert shown("--all") == ["products-earlier", "products-later", "products-other"]


def test_numerics_are_printed_as_their_command_prints_them(kept, fp8bench_in):
    done = fp8bench_in("compare", "p5", "--kind", "numerics")
    assert (done.code, done.stderr) == (0, "")
    assert "te-fp8:delayed" in done.stdout
    assert "output" in done.stdout.splitlines()[0]


def test_runs_are_compared_as_if_nothing_else_were_there(kept, fp8bench_in):
    done = fp8bench_in("compare", "p5", "--format", "json")
    assert [row["mode"] for row in json.loads(done.stdout)] == ["baseline-bf16"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("p5", "--kind", "gemm"), "no record of `fp8bench gemm` for p5. Run `fp8bench gemm --instance p5` there."),
        (("p5", "--kind", "gem"), "unknown --kind 'gem'. Did you mean 'gemm'?"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(fp8bench_in, flags, words):
    done = fp8bench_in("compare", *flags)
    assert (done.code, done.stdout) == (2, "")
    assert words in done.stderr
