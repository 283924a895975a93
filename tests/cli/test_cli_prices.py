"""`fp8bench prices`, and the ways by which a price comes to a machine of one's own."""

import csv
import json
import sys
from datetime import date
from pathlib import Path

import pytest
from builders import environment, measured
from cli.calling import keep
from cli.home import IMPORT
from pricing.gpuhunt_catalog import AWS, folder_of

from fp8bench.launch import place as placing
from fp8bench.schema.errors import ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.machine import software_of

TODAY = date.today()


@pytest.fixture
def shown(rows_of):
    return lambda *words: rows_of("prices", "show", *words)


class TestShow:
    def test_each_instance_has_the_price_in_force_with_its_day_age_and_source(self, shown):
        (p5,) = [one for one in shown() if one["instance"] == "p5"]
        assert (p5["usd_per_hour"], p5["usd_per_gpu_hour"], p5["as_of"]) == (55.04, 6.88, "2026-11-09")
        assert p5["age_days"] == (TODAY - date(2026, 11, 9)).days
        assert (p5["in_force"], p5["region"], p5["purchase"]) == (True, "us-east-1", "on_demand")
        assert p5["source"].endswith("hyperscalers.json")

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ("--gpu l4 --provider runpod", {"runpod-1x-l40s", "runpod-8x-l4"}),
            ("p5 p4d --provider aws --purchase capacity_block", {"p5", "p4d"}),
            ("--region us-east-2 --gpu b200 --provider aws", {"p6-b200"}),
        ],
    )
    def test_filters(self, filters, expected, command):
        rows = csv.DictReader(command("prices", "show", *filters.split(), "--format", "csv").stdout.splitlines())
        assert {row["instance"] for row in rows} == expected

    def test_a_name_lists_every_price_of_it_and_marks_those_in_force(self, command):
        shown = command("prices", "show", "p5", "--format", "markdown").stdout
        table = shown.split("\n\n")[0].splitlines()[2:]
        in_force = [line.split("|")[3].strip() for line in table if "in force" in line]
        assert len(table) == 8
        assert in_force == ["on_demand", "spot"], "the price of a capacity block ended in 2025"

    def test_an_absurd_snapshot_is_refused_by_line_and_field_where_it_is_asked_for(self, command, written):
        header = "instance,usd_per_hour,purchase,region,zone,as_of,source"
        written(**{"results__prices__2026-11-20.csv": f"{header}\np5,1e9,on_demand,,,2026-11-20,a page\n"})
        said = r"results/prices/2026-11-20\.csv line 2, field usd_per_hour: invalid value '1e9'"
        with pytest.raises(UsageError, match=said):
            command("prices", "show", "p5")
        command("prices", "show", "p4d")


class TestUpdate:
    @pytest.fixture
    def update(self, tmp_path, monkeypatch, command):
        def updating(*words, **items):
            monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(folder_of(tmp_path / "gpuhunt", **items)))
            return command("prices", "update", "--provider", "aws", *words).stdout

        return updating

    def test_a_new_snapshot_holds_from_now_on_beside_older_ones_and_says_what_changed(self, update, rows_of, tmp_path):
        assert "55.04" in update("--dry-run", aws=AWS)
        assert not (tmp_path / "results").exists()
        said = json.loads(update("--format", "json", aws=AWS))
        assert said["snapshot"] == f"results/prices/{TODAY}.csv"
        assert said["changes"][0] == {
            "instance": "p5",
            "purchase": "on_demand",
            "region": "us-east-1",
            "usd_per_hour_before": 55.04,
            "as_of_before": "2026-11-09",
            "usd_per_hour": 50.0,
            "change": pytest.approx(50 / 55.04 - 1),
        }
        assert "p4d" in said["not_offered"]
        keep(measured("p5"), tmp_path / "results")
        (row,) = rows_of("compare", "p5")
        assert (row["usd_per_hour"], row["price_as_of"]) == (50.0, str(TODAY))
        assert row["price_source"].startswith("gpuhunt ")
        assert "none was written" in update(aws=AWS)
        said = json.loads(update("--format", "json", aws=AWS[1:2]))
        assert {path.name for path in (tmp_path / "results" / "prices").iterdir()} == {f"{TODAY}.csv", f"{TODAY}.2.csv"}
        gone = [(one["instance"], one["purchase"]) for one in said["changes"] if one["usd_per_hour"] is None]
        assert gone == [("p5", "on_demand"), ("p5", "spot"), ("p5-4xlarge", "on_demand")]

    def test_offline_and_without_the_extra_the_remedy_is_named(self, monkeypatch, tmp_path, command):
        monkeypatch.delenv("GPUHUNT_CATALOG_DIR", raising=False)
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", (tmp_path / "nothing").as_uri())
        with pytest.raises(
            RunFailed, match=r"cannot be reached: .* Connect to the internet, or name .* GPUHUNT_CATALOG_D"
        ):
            command("prices", "update")
        monkeypatch.setitem(sys.modules, "gpuhunt", None)
        with pytest.raises(ModeUnavailable, match=r"Install it: `pip install 'fp8bench\[prices\]'`"):
            command("prices", "update")


def test_ones_own_price_holds_before_the_catalogues(command, shown):
    words = ("--per-gpu", "--source", "contract 7", "--as-of", "2026-10-01")
    said = command("prices", "set", "p5", "5", *words).stdout
    first, *_ = shown("p5")
    assert said.startswith("p5: 40.00 USD/h, on_demand, as of 2026-10-01, contract 7. Kept in results/p5/")
    assert (first["usd_per_hour"], first["own"], first["in_force"]) == (40.0, True, True)
    assert (first["source"], first["as_of"], first["derived"]) == ("contract 7", "2026-10-01", True)


def test_a_machine_of_ones_own_is_made_by_its_name_and_price_and_its_session_brings_them_along(run_with, monkeypatch):
    monkeypatch.setattr(placing, "software_here", lambda on_gpu: software_of(environment(None)))
    own = "--instance my-box --price 3.20 --session b8 --mode baseline-bf16 --rounds 1"
    said = run_with([0.1], *own.split()).stderr
    assert "instance 'my-box' is new, and is made of this machine" in said
    printed = json.loads(run_with([], "--session", "b8", "--dry-run", "--json").stdout)
    assert printed["settings"]["instance"] == {"value": "my-box", "origin": "session b8"}


@pytest.fixture
def imported(command, tmp_path):
    """Import a figure of p5; returns its record, and what was said."""

    def importing(*words, mode="te-fp8", source="a talk"):
        done = command("results", "import", *IMPORT.split(), "--mode", mode, "--source", source, *words)
        path = tmp_path / done.stdout.strip()
        return path.relative_to(tmp_path).parent, json.loads(path.read_text()), done.stderr

    return importing


def test_an_imported_figure_is_written_and_compared_marked_as_external_or_published(imported, command, rows_of):
    where, record, said = imported("--compile", mode="te-fp8:delayed")
    shown = command("compare", "p5", "--batch-size", "64", "--columns", "mode,throughput,notes").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("te-fp8:delayed")]
    assert (where, record["provenance"]["citation"], said) == (Path("results/p5"), "a talk", "")
    assert line.endswith("external")
    assert "2,560" in line
    dated = ("--published-on", "2024-05-01")
    where, record, _ = imported(*dated, "--derivation", "0.24 / 1.2", mode="te-bf16", source="a paper")
    assert (where, record["source"]) == (Path("results/published"), "published")
    assert record["provenance"]["derivation"] == "0.24 / 1.2"
    (row,) = [row for row in rows_of("compare", "p5") if (row["mode"], row["step_time_s"]) == ("te-bf16", 0.2)]
    assert row["marks"][:2] == ["published", "derived from 0.24 / 1.2"]


def test_a_step_that_the_gpu_cannot_take_is_doubted_and_kept(imported):
    where, _, said = imported("--step-time", "150", mode="te-bf16")
    assert where == Path("results/p5")
    assert said.startswith("fp8bench: warning: a step of 150 s for 64 images a GPU uses ")
    assert said.count("\n") == 1


def test_a_figure_that_no_table_shows_says_so(imported, command, tmp_path):
    assert imported()[2] == ""
    keep(measured("p5"), tmp_path / "results")
    said = imported(source="the best talk")[2]
    assert "`fp8bench compare p5 --all --allow-mismatch` has it" in said
    assert "te-fp8" not in command("compare", "p5").stdout
    assert "te-fp8" in command("compare", "p5", "--all", "--allow-mismatch").stdout
