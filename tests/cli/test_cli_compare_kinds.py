"""`fp8bench compare --kind`: what other commands kept, found among the runs. A record alone is printed as its command
prints it, several of the same work side by side.
"""

import pytest
from builders import at, measured
from report.made_gemm import gemm_record, record_of_one, timing
from report.made_numerics import record as numerics_record
from report.made_numerics import row

from fp8bench.records import results


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


@pytest.fixture
def lines_with(command):
    def found(word, *words):
        return [line.split() for line in command("compare", *words).stdout.splitlines() if word in line]

    return found


def test_of_products_the_latest_of_each_fingerprint_is_shown_and_all_on_demand_and_no_run_or_other_kind(
    tmp_path, rows_of
):
    for name, minute, shapes in (("earlier", 1, "a"), ("later", 2, "a"), ("other", 3, "b")):
        one = gemm_record(instance="p5", run_id=name, created_utc=at(minute), fingerprint={"shapes": shapes})
        results.write(one, tmp_path / "results")
    for beside in (measured("p5"), numerics_record(instance="p5", minutes=4)):
        results.write(beside, tmp_path / "results")
    words = ("compare", "p5", "--kind", "gemm")
    assert [report["run_id"] for report in rows_of(*words)] == ["later", "other"]
    assert [report["run_id"] for report in rows_of(*words, "--all")] == ["earlier", "later", "other"]


@pytest.mark.usefixtures("several")
def test_products_of_two_instances_stand_side_by_side(command, lines_with):
    (times,) = lines_with("bf16  ", "p4d", "p5", "--kind", "gemm")
    assert times[-7:] == ["1,001", "(996-1,006)", "0.000524", "500.0", "(497.5-502.5)", "2.00x", "0.00105"]
    done = command("compare", "p4d", "p5", "--kind", "gemm")
    assert "\x1b" not in done.stdout
    assert done.stderr == "fp8bench: warning: p5: the GPU was busy\n"


@pytest.mark.usefixtures("several")
def test_the_instance_that_is_named_first_is_held_against_and_records_of_one_are_told_apart(command, lines_with):
    (times,) = lines_with("| bf16", "p5", "p4d", "--kind", "gemm", "--format", "markdown")
    assert (times[-2:], "0.50x" in times) == (["0.000524", "|"], True)
    words = ("p4d", "--kind", "gemm", "--all")
    two = "on p4d 2026-05-01 10:01 (NVIDIA H200), p4d 2026-05-01 10:03 (NVIDIA H200);"
    assert two in command("compare", *words).stdout
    (times,) = lines_with("bf16  ", *words)
    assert times[-2] == "1.00x?"
    (line,) = lines_with("6.0e-02", "p5", "p4d", "--kind", "numerics")
    assert line == ["normal", "te-fp8:delayed", "output", "6.0e-02", "4.0e-02", "0.67x"]


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("named", [("p5", "p4d"), ("p4d", "p5")])
def test_machines_get_records_one_by_one_in_the_order_of_the_instances(command, rows_of, named):
    ids = {"p4d": ["products-p4d-1", "products-p4d-3"], "p5": ["products-p5-2"]}
    found = rows_of("compare", *named, "--kind", "gemm", "--all")
    assert [one["run_id"] for one in found] == [*ids[named[0]], *ids[named[1]]]
    table = command("compare", *named, "--kind", "numerics", "--format", "csv").stdout
    assert [line.split(",")[0] for line in table.splitlines()[1:]] == list(named)


def test_one_record_alone_is_printed_as_its_command_prints_it_and_an_instance_without_is_named(several, command):
    record = next(iter((several / "p5").glob("products*")))
    alone = command("gemm", "--record", str(record)).stdout
    assert command("compare", "p5", "--kind", "gemm").stdout == alone
    for kind in ("gemm", "numerics"):
        said = command("compare", "p4d", "p4de", "p5", "--kind", kind).stderr
        (line,) = [line for line in said.splitlines() if "p4de" in line]
        assert line == f"fp8bench: warning: no record of `fp8bench {kind}` for p4de: it is omitted"
