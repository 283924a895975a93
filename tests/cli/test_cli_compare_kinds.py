"""`fp8bench compare --kind`: what other commands kept, found among the runs. A record alone is printed as its command
prints it, several of the same work side by side.
"""

import json

import pytest
from builders import at, measured
from report.made_gemm import gemm_record, record_of_one, timing
from report.made_numerics import record as numerics_record
from report.made_numerics import row

from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.records import results

EARLIER, LATER, OTHER = (
    gemm_record(instance="p5", run_id=f"products-{name}", created_utc=at(minute), fingerprint={"shapes": shapes})
    for name, minute, shapes in (("earlier", 1, "a"), ("later", 2, "a"), ("other", 3, "b"))
)
ERRORS = numerics_record(instance="p5", minutes=4)


def products(instance, bf16_s, minutes, **changes):
    timings = timing("bf16", bf16_s), timing("fp8-rowwise", bf16_s / 2)
    return record_of_one(instance, *timings, minutes=minutes, calls=1000, **changes)


@pytest.fixture
def several(tmp_path):
    """Of two instances, products and errors of the same work; of the first one twice."""
    for record in (
        products("p4d", 1e-3, 1),
        products("p5", 5e-4, 2, warnings=("the GPU was busy",)),
        products("p4d", 1.001e-3, 3),
        numerics_record(row(relative_error=0.04), instance="p4d", minutes=4),
        numerics_record(row(relative_error=0.06), instance="p5", minutes=5),
    ):
        results.write(record, tmp_path / "results")
    return tmp_path / "results"


def lines_with(word, done):
    assert done.code == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines() if word in line]


@pytest.fixture
def kept(tmp_path):
    """A run, three records of products and one of numerics, of one instance."""
    for record in (measured("p5"), EARLIER, LATER, OTHER, ERRORS):
        results.write(record, tmp_path / "results")
    return tmp_path / "results"


def test_each_kind_is_read_by_itself_and_comes_back_whole(kept):
    assert [record.kind for record, _ in results.read(kept, ["p5"]) if record.source == "measured"] == ["run"]
    assert list(results.read_kind(kept, ["p5"], GemmRecord)) == [EARLIER, LATER, OTHER]
    assert list(results.read_kind(kept, ["p5"], NumericsRecord)) == [ERRORS]
    assert not results.read_kind(kept, ["p4d"], NumericsRecord)


def test_of_products_the_latest_of_each_fingerprint_is_shown_and_all_on_demand(kept, fp8bench_in):
    def shown(*flags):
        done = fp8bench_in("compare", "p5", "--kind", "gemm", "--format", "json", *flags)
        assert done.code == 0, done.stderr
        return [report["run_id"] for report in json.loads(done.stdout)]

    assert shown() == ["products-later", "products-other"]
    assert shown("--all") == ["products-earlier", "products-later", "products-other"]


@pytest.mark.usefixtures("several")
def test_products_of_two_instances_stand_side_by_side_held_against_the_one_named_first(fp8bench_in):
    done = fp8bench_in("compare", "p4d", "p5", "--kind", "gemm")
    times, step = lines_with("bf16  ", done)
    assert times[-7:] == ["1,001", "(996-1,006)", "0.000524", "500.0", "(497.5-502.5)", "2.00x", "0.00105"]
    assert step[-7:] == ["1,001", "(996-1,006)", "0.000524", "500.0", "(497.5-502.5)", "2.00x", "0.00105"]
    assert "\x1b" not in done.stdout
    assert done.stderr == "fp8bench: warning: p5: the GPU was busy\n"
    done = fp8bench_in("compare", "p5", "p4d", "--kind", "gemm", "--format", "markdown")
    times, _ = lines_with("| bf16", done)
    assert (times[-2:], "0.50x" in times) == (["0.000524", "|"], True)
    done = fp8bench_in("compare", "p4d", "--kind", "gemm", "--all")
    assert "on p4d 2026-05-01 10:01 (NVIDIA H200), p4d 2026-05-01 10:03 (NVIDIA H200);" in done.stdout
    times, _ = lines_with("bf16  ", done)
    assert times[-2] == "1.00x?"
    (line,) = lines_with("6.0e-02", fp8bench_in("compare", "p5", "p4d", "--kind", "numerics"))
    assert line == ["normal", "te-fp8:delayed", "output", "6.0e-02", "4.0e-02", "0.67x"]


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("named", [("p5", "p4d"), ("p4d", "p5")])
def test_machines_get_records_one_by_one_in_the_order_of_the_instances(fp8bench_in, named):
    ids = {"p4d": ["products-p4d-1", "products-p4d-3"], "p5": ["products-p5-2"]}
    done = fp8bench_in("compare", *named, "--kind", "gemm", "--format", "json", "--all")
    assert [one["run_id"] for one in json.loads(done.stdout)] == [*ids[named[0]], *ids[named[1]]]
    done = fp8bench_in("compare", *named, "--kind", "numerics", "--format", "csv")
    assert [line.split(",")[0] for line in done.stdout.splitlines()[1:]] == list(named)


@pytest.mark.parametrize("kind", ["gemm", "numerics"])
def test_an_instance_that_has_none_is_named_and_left_out(kind, several, fp8bench_in):
    done = fp8bench_in("compare", "p4d", "p4de", "p5", "--kind", kind)
    (line,) = [line for line in done.stderr.splitlines() if "p4de" in line]

    assert done.code == 0
    assert line == f"fp8bench: warning: no record of `fp8bench {kind}` for p4de: it is omitted"
