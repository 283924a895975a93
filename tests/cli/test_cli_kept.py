"""Records named on the command line: by file, by the beginning of an id; shown and drawn without measuring."""

from dataclasses import replace

import pytest
from calling import invoked
from report.made_gemm import gemm_record, sweep_record
from report.made_numerics import record as numerics_record
from report.made_numerics import row

from fp8bench.kinds import gemm, numerics
from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.records.named import by_id, find_kept, names_a_file
from fp8bench.records.results import write
from fp8bench.schema.errors import UsageError


@pytest.fixture
def products(tmp_path):
    """Two records of products, in a folder of results."""
    records = [
        gemm_record(run_id="20260501T100000Z-a"),
        sweep_record(run_id="20260502T100000Z-b"),
    ]
    return tmp_path, records, [write(record, tmp_path) for record in records]


def test_a_record_is_named_by_its_file_its_id_or_how_that_begins(products):
    folder, (first, _), (path, _) = products
    assert find_kept(str(path), folder, GemmRecord) == first
    assert find_kept(first.run_id, folder, GemmRecord) == first
    assert find_kept("20260501", folder, GemmRecord) == first


def test_what_names_none_or_several_is_told(products, tmp_path):
    folder, records, (path, _) = products
    with pytest.raises(UsageError, match=f"2 run ids begin with '202605'. Give more of it: {records[0].run_id}, "):
        find_kept("202605", folder, GemmRecord)
    with pytest.raises(UsageError, match=f"no file is called '2025'.* The latest are: {records[0].run_id}, "):
        find_kept("2025", folder, GemmRecord)
    with pytest.raises(UsageError, match="keeps none of its kind: measure one first"):
        find_kept("2025", tmp_path / "elsewhere", GemmRecord)
    with pytest.raises(UsageError, match="is a record of kind gemm, not numerics"):
        find_kept(str(path), folder, NumericsRecord)
    with pytest.raises(UsageError, match=r"cannot read .*missing\.json: No such file"):
        find_kept(str(tmp_path / "missing.json"), folder, GemmRecord)


def test_an_id_that_others_begin_with_is_itself():
    assert by_id("a", {"a": 1, "ab": 2, "abc": 3}) == 1
    assert by_id("d", {"a": 1, "ab": 2, "abc": 3}) is None
    with pytest.raises(UsageError, match=r"5 run ids begin with 'b'. Give more of it: b1, b2, b3, \.\.\."):
        by_id("b", dict.fromkeys(["a", "b1", "b2", "b3", "b4", "b5"], 1))


def test_a_path_is_a_path_even_where_nothing_is(tmp_path):
    (tmp_path / "trace").touch()
    named = {"one.json": True, "one.json.gz": True, "20260501": False, str(tmp_path / "trace"): True}
    assert {name: names_a_file(name) for name in named} == named


@pytest.fixture
def measures_nothing(monkeypatch):
    """A measurement fails the test."""
    for kind in (gemm, numerics):
        monkeypatch.setattr(kind, "KIND", replace(kind.KIND, measure=lambda *_: pytest.fail("measured")))


@pytest.mark.slow
@pytest.mark.usefixtures("measures_nothing")
def test_kept_products_are_shown_and_drawn_and_nothing_is_measured(products):
    folder, _, (path, _) = products
    done = invoked("gemm", "--record", path, "--results-dir", folder, "--plot", folder / "map.png")
    assert done.exit_code == 0
    assert done.stdout.startswith("vit-huge, batch 64, on custom-1x-nvidia-h200")
    assert (folder / "map.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.usefixtures("measures_nothing")
def test_kept_errors_are_shown_and_drawn_and_nothing_is_measured(tmp_path):
    path = write(numerics_record(row()), tmp_path)
    plots = ["--plot", tmp_path / "errors.png", "--history-plot", tmp_path / "jump.png"]
    done = invoked("numerics", "--record", path, "--results-dir", tmp_path, *plots)
    assert done.exit_code == 0
    assert done.stdout.startswith("numerics, width 1280")
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("errors.png", "jump.png"))
