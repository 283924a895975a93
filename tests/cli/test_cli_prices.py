"""`fp8bench prices`, and the ways by which a price comes to a machine of one's own."""

import csv
import json
import os
import sys
from datetime import date
from pathlib import Path

import pytest
from builders import measured
from cli.calling import keep, one_line
from pricing.gpuhunt_catalog import AWS, folder_of, item

from fp8bench.cli.app import main
from fp8bench.records import instances

TODAY = date.today()


class TestShow:
    def test_each_instance_has_the_price_in_force_with_its_day_age_and_source(self, fp8bench_in):
        shown = json.loads(fp8bench_in("prices", "show", "--format", "json").stdout)
        (p5,) = [one for one in shown if one["instance"] == "p5"]

        assert (p5["usd_per_hour"], p5["usd_per_gpu_hour"], p5["as_of"]) == (55.04, 6.88, "2026-11-09")
        assert p5["age_days"] == (TODAY - date(2026, 11, 9)).days
        assert (p5["in_force"], p5["region"], p5["purchase"]) == (True, "us-east-1", "on_demand")
        assert p5["source"].endswith("hyperscalers.json")

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            (("--gpu", "l4", "--provider", "runpod"), {"runpod-1x-l40s", "runpod-8x-l4"}),
            (("p5", "p4d", "--provider", "aws", "--purchase", "capacity_block"), {"p5", "p4d"}),
            (("--region", "us-east-2", "--gpu", "b200", "--provider", "aws"), {"p6-b200"}),
        ],
    )
    def test_filters(self, filters, expected, fp8bench_in):
        rows = csv.DictReader(fp8bench_in("prices", "show", *filters, "--format", "csv").stdout.splitlines())

        assert {row["instance"] for row in rows} == expected

    def test_a_name_lists_every_price_of_it_and_marks_those_in_force(self, fp8bench_in):
        table = fp8bench_in("prices", "show", "p5", "--format", "markdown").stdout.split("\n\n")[0].splitlines()[2:]

        assert len(table) == 8
        assert [line.split("|")[3].strip() for line in table if "in force" in line] == [
            "on_demand",
            "spot",
        ], "the price of a capacity block ended in 2025"

    def test_an_absurd_snapshot_is_refused_by_line_and_field_where_it_is_asked_for(self, fp8bench_in, written):
        header = "instance,usd_per_hour,purchase,region,zone,as_of,source"
        written(**{"results__prices__2026-11-20.csv": f"{header}\np5,1e9,on_demand,,,2026-11-20,a page\n"})
        done = fp8bench_in("prices", "show", "p5")

        assert done.code == 2
        assert "results/prices/2026-11-20.csv line 2, field usd_per_hour: invalid value '1e9'" in one_line(done)
        assert fp8bench_in("prices", "show", "p4d").code == 0


class TestUpdate:
    @pytest.fixture
    def update(self, tmp_path, fp8bench_in):
        def updating(*words, **items):
            folder = folder_of(tmp_path / "gpuhunt", **items)
            return fp8bench_in("prices", "update", "--provider", "aws", *words, GPUHUNT_CATALOG_DIR=str(folder))

        return updating

    def test_a_new_snapshot_holds_from_now_on_and_says_what_changed(self, update, fp8bench_in, tmp_path):
        done = update("--format", "json", aws=AWS)
        said = json.loads(done.stdout)

        assert (done.code, done.stderr) == (0, "")
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
        (row,) = json.loads(fp8bench_in("compare", "p5", "--format", "json").stdout)
        assert (row["usd_per_hour"], row["price_as_of"]) == (50.0, str(TODAY))
        assert row["price_source"].startswith("gpuhunt ")

    def test_the_same_day_twice_keeps_both_and_nothing_where_nothing_changed(self, update, tmp_path):
        update(aws=AWS)
        first = (tmp_path / "results" / "prices" / f"{TODAY}.csv").read_text()
        again = update(aws=AWS)
        update(aws=[item("aws", "p5.48xlarge", "us-east-1", 49.0)])

        assert "none was written" in again.stdout
        assert [path.name for path in instances.snapshots(tmp_path / "results")] == [
            f"{TODAY}.csv",
            f"{TODAY}.2.csv",
        ]
        assert (tmp_path / "results" / "prices" / f"{TODAY}.csv").read_text() == first

    def test_what_is_no_longer_offered_is_gone(self, update):
        update(aws=AWS)
        said = json.loads(update("--format", "json", aws=AWS[1:2]).stdout)

        gone = [(one["instance"], one["purchase"]) for one in said["changes"] if one["usd_per_hour"] is None]
        assert gone == [("p5", "on_demand"), ("p5", "spot"), ("p5-4xlarge", "on_demand")]

    def test_a_dry_run_writes_nothing(self, update, tmp_path):
        assert "55.04" in update("--dry-run", aws=AWS).stdout
        assert not (tmp_path / "results").exists()

    def test_offline_is_one_line_with_the_remedy(self, fp8bench_in, tmp_path):
        done = fp8bench_in("prices", "update", GPUHUNT_CATALOG_URL=(tmp_path / "nothing").as_uri())

        assert done.code == 5
        assert "cannot be reached: " in one_line(done)
        assert (
            "Connect to the internet, or name a folder with gpuhunt's catalogue in GPUHUNT_CATALOG_DIR" in done.stderr
        )

    def test_without_the_extra_its_install_command_is_named(self, monkeypatch, tmp_path, capsys):
        monkeypatch.setitem(sys.modules, "gpuhunt", None)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fp8bench", "prices", "update"])
        with pytest.raises(SystemExit) as ended:
            main()

        assert ended.value.code == 3
        assert "Install it: `pip install 'fp8bench[prices]'`" in capsys.readouterr().err


class TestSet:
    def test_ones_own_price_holds_before_the_catalogues(self, fp8bench_in):
        done = fp8bench_in("prices", "set", "p5", "5", "--per-gpu", "--source", "contract 7", "--as-of", "2026-10-01")
        first, *_ = json.loads(fp8bench_in("prices", "show", "p5", "--format", "json").stdout)

        assert done.stdout.startswith("p5: 40.00 USD/h, on_demand, as of 2026-10-01, contract 7. Kept in results/p5/")
        assert (first["usd_per_hour"], first["own"], first["in_force"]) == (40.0, True, True)
        assert (first["source"], first["as_of"], first["derived"]) == ("contract 7", "2026-10-01", True)

    @pytest.mark.parametrize("words", [("set", "p5", "3"), ("update", "p5")])
    def test_a_folder_that_cannot_be_written_is_refused(self, words, fp8bench_in, tmp_path):
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o555)
        if os.access(folder, os.W_OK):
            folder.rmdir()
            (tmp_path / "closed").symlink_to("/proc/1")
        done = fp8bench_in("prices", *words, "--results-dir", "closed")

        assert done.code == 2
        assert "cannot write" in one_line(done)


class TestAMachineOfOnesOwn:
    def test_an_interrupted_session_of_it_is_resumed_by_the_line_that_is_printed(self, fp8bench_in, outside_site):
        tiny = ("--workload", "outside-linear", "--gpus", "1", "--batch-size", "8", "--warmup", "1", "--min-time", "0")
        words = ("--steps", "2", "--mode", "outside-polite", "--rounds", "1", "--results-dir", "kept")
        own = "--instance my-box --price 3.20 --session b8".split()
        first = fp8bench_in("run", *own, *tiny, *words, PYTHONPATH=str(outside_site))
        resumed = fp8bench_in(
            "run", "--session", "b8", "--results-dir", "kept", "--dry-run", "--json", PYTHONPATH=str(outside_site)
        )
        settings = json.loads(resumed.stdout)["settings"]

        assert first.code == 0
        assert "instance 'my-box' is new, and is made of this machine: its CPU" in first.stderr
        assert settings["instance"] == {"value": "my-box", "origin": "session b8"}
        assert settings["batch_size"] == {"value": 8, "origin": "session b8"}
        assert [run["mode"] for run in json.loads(resumed.stdout)["runs"]] == ["outside-polite"]


IMPORT = ("results", "import", "--instance", "p5", "--step-time", "0.2", "--batch-size", "64", "--gpus", "8")


def test_an_imported_figure_is_written_and_compared_marked_as_external(fp8bench_in, tmp_path):
    written = fp8bench_in(*IMPORT, "--mode", "te-fp8:delayed", "--source", "a talk", "--compile")
    path = tmp_path / written.stdout.strip()
    compared = fp8bench_in("compare", "p5", "--batch-size", "64", "--columns", "mode,throughput,notes")
    (line,) = [line for line in compared.stdout.splitlines() if line.startswith("te-fp8:delayed")]

    assert (written.code, written.stderr, compared.code) == (0, "", 0)
    assert path.parent == tmp_path / "results" / "p5"
    assert json.loads(path.read_text())["provenance"]["citation"] == "a talk"
    assert line.endswith("external")
    assert "2,560" in line


def test_an_imported_figure_with_a_date_is_published(fp8bench_in, tmp_path):
    written = fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a paper", "--published-on", "2024-05-01")

    assert written.code == 0
    assert Path(written.stdout.strip()).parent == Path("results/published")
    assert json.loads((tmp_path / written.stdout.strip()).read_text())["source"] == "published"


def test_a_figure_that_follows_from_what_was_published_is_marked_with_how(fp8bench_in, tmp_path):
    figure = ("--mode", "te-bf16", "--source", "a paper", "--published-on", "2024-05-01", "--derivation", "0.24 / 1.2")
    written = fp8bench_in(*IMPORT, *figure)
    compared = fp8bench_in("compare", "p5", "--format", "json")

    assert json.loads((tmp_path / written.stdout.strip()).read_text())["provenance"]["derivation"] == "0.24 / 1.2"
    (row,) = [row for row in json.loads(compared.stdout) if row["step_time_s"] == 0.2]
    assert row["marks"][:2] == ["published", "derived from 0.24 / 1.2"]


@pytest.mark.parametrize("step_time", ["150", "199", "0.0002"])
def test_a_step_that_the_gpu_cannot_take_is_doubted_and_kept(step_time, fp8bench_in):
    outcome = fp8bench_in(*IMPORT, "--mode", "te-bf16", "--source", "a talk", "--step-time", step_time)

    assert outcome.code == 0
    assert outcome.stdout.startswith("results/p5/")
    assert outcome.stderr.startswith(f"fp8bench: warning: a step of {step_time} s for 64 images a GPU uses ")
    assert outcome.stderr.count("\n") == 1


def test_a_figure_that_no_table_shows_says_so(fp8bench_in, tmp_path):
    keep(measured("p5"), tmp_path / "results")
    outcome = fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a talk")
    shown = fp8bench_in("compare", "p5")
    every = fp8bench_in("compare", "p5", "--all", "--allow-mismatch")

    assert outcome.stderr.startswith("fp8bench: warning: no table shows this figure: p5 has measured records")
    assert "`fp8bench compare p5 --all --allow-mismatch` does" in outcome.stderr
    assert "te-fp8" not in shown.stdout
    assert "te-fp8" in every.stdout


def test_a_figure_in_the_place_of_another_says_of_which(fp8bench_in):
    fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a talk")
    outcome = fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a better talk")

    assert outcome.stderr.startswith("fp8bench: warning: this figure replaces ")


def test_a_figure_of_other_work_says_how_it_is_shown(fp8bench_in):
    outcome = fp8bench_in(*IMPORT, "--mode", "te-fp8", "--source", "a talk", "--workload", "vit-huge-256")
    flag = outcome.stderr.strip().rpartition("with ")[2].split()

    assert flag == ["--workload", "vit-huge-256"]
    assert "te-fp8" in fp8bench_in("compare", "p5", *flag).stdout
