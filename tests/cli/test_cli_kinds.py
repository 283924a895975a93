"""`fp8bench gemm`, `numerics` and `converge` as their users call them: what is printed where, kept and drawn; and
`compare --kind`, which finds among the runs what such commands kept: a record alone is printed as its command prints
it, several of the same work side by side. What a kind refuses is in tests/kinds, what is shown again in JSON in
tests/goldens, and what `numerics formats` shows in test_cli_words.
"""

from dataclasses import replace

import pytest
from builders import at, measured
from report.made_converge import record as converge_record
from report.made_gemm import gemm_record, record_of_one, sweep_record, timing
from report.made_numerics import record as numerics_record
from report.made_numerics import row

from fp8bench.kinds import converge, gemm, numerics
from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.numerics import NumericsRecord
from fp8bench.records import results
from fp8bench.records.named import by_id, find_kept, names_a_file
from fp8bench.schema.errors import UsageError


@pytest.mark.parametrize(
    ("form", "begins"),
    [("table", "vit-huge, batch 64"), ("markdown", "vit-huge, batch 64"), ("csv", "run_id,"), ("json", "[\n")],
)
def test_every_format_goes_to_stdout_and_nothing_else_does(command, monkeypatch, form, begins):
    record = gemm_record(warnings=("busy GPU: 1.0 GiB",))

    def measure(_prepared, told):
        told("1 of 1: made up")
        return record

    monkeypatch.setattr(gemm, "KIND", replace(gemm.KIND, measure=measure))
    done = command("gemm", "--format", form)
    assert done.stdout.startswith(begins)
    lines = ["1 of 1: made up", "warning: busy GPU: 1.0 GiB", f"kept as results/{record.instance}/{record.run_id}.json"]
    assert sorted(done.stderr.splitlines()) == sorted(f"fp8bench: {line}" for line in lines)


def test_a_record_is_named_by_its_file_its_id_or_how_that_begins_and_what_names_none_or_several_is_told(tmp_path):
    first, last = gemm_record(run_id="20260501T100000Z-a"), sweep_record(run_id="20260502T100000Z-b")
    path, _ = (results.write(record, tmp_path) for record in (first, last))
    for name in (str(path), first.run_id, "20260501"):
        assert find_kept(name, tmp_path, GemmRecord) == first
    for name, where, kind, said in (
        ("202605", tmp_path, GemmRecord, f"2 run ids begin with '202605'. Give more of it: {first.run_id}, "),
        ("2025", tmp_path, GemmRecord, f"no file is called '2025'.* The latest are: {first.run_id}, "),
        ("2025", tmp_path / "elsewhere", GemmRecord, "keeps none of its kind: measure one first"),
        (str(path), tmp_path, NumericsRecord, "is a record of kind gemm, not numerics"),
        (str(tmp_path / "missing.json"), tmp_path, GemmRecord, r"missing\.json cannot be read: No such file"),
    ):
        with pytest.raises(UsageError, match=said):
            find_kept(name, where, kind)
    # An id that others begin with is itself, and a path is one even where nothing is.
    assert by_id("a", {"a": 1, "ab": 2, "abc": 3}) == 1
    assert by_id("d", {"a": 1, "ab": 2, "abc": 3}) is None
    with pytest.raises(UsageError, match=r"5 run ids begin with 'b'. Give more of it: b1, b2, b3, \.\.\."):
        by_id("b", dict.fromkeys(["a", "b1", "b2", "b3", "b4", "b5"], 1))
    (tmp_path / "trace").touch()
    named = {"one.json": True, "one.json.gz": True, "20260501": False, str(tmp_path / "trace"): True}
    assert {name: names_a_file(name) for name in named} == named


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "begins", "plots"),
    [
        (gemm_record(), "vit-huge, batch 64, on custom-1x-nvidia-h200", {"--plot": "map.png"}),
        (numerics_record(row()), "numerics, width 1280", {"--plot": "errors.png", "--history-plot": "jump.png"}),
        (converge_record(), "llm-1b: 100 steps of 8 x 128 bytes", {"--plot": "curves.png"}),
    ],
    ids=["products", "errors", "curves"],
)
def test_what_was_kept_is_shown_and_drawn_and_nothing_is_measured(
    command, tmp_path, monkeypatch, record, begins, plots
):
    for kind in (gemm, numerics, converge):
        monkeypatch.setattr(kind, "KIND", replace(kind.KIND, measure=lambda *_: pytest.fail("measured")))
    drawn = [word for flag, name in plots.items() for word in (flag, tmp_path / name)]
    done = command(record.kind, "--record", results.write(record, tmp_path), "--results-dir", tmp_path, *drawn)
    assert done.stdout.startswith(begins)
    assert done.stderr.endswith(f"{[*plots.values()][-1]}\n")
    assert all((tmp_path / name).stat().st_size > 10_000 for name in plots.values())


QUICK = ("--layer", "linear", "--input", "normal", "--width", "32")


@pytest.mark.slow
def test_where_nothing_could_run_the_exit_code_is_3_and_the_reason_is_told(command, tmp_path):
    done = command("numerics", *QUICK, "--mode", "te-fp8", "--plot", "errors.png", code=3)
    assert "needs an NVIDIA GPU" in done.stdout
    [path] = tmp_path.glob("results/*/*.json")
    record = NumericsRecord.model_validate_json(path.read_text())
    assert (record.status, record.remedy is not None) == ("unsupported", True)
    assert "needs an NVIDIA GPU" in record.reason
    assert not (tmp_path / "errors.png").exists()


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
def test_the_latest_records_of_two_instances_stand_side_by_side_held_against_the_first_named(command):
    done = command("compare", "p5", "p4d", "--kind", "gemm")
    (times,) = [line.split() for line in done.stdout.splitlines() if "bf16  " in line]
    assert times[-7:] == ["500.0", "(497.5-502.5)", "0.00105", "1,001", "(996-1,006)", "0.50x", "0.000524"]
    assert "\x1b" not in done.stdout
    assert done.stderr == "fp8bench: warning: p5: the GPU was busy\n"


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
