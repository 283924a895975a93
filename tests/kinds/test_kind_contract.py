"""The contract of every kind of thing that is measured: its example is run, kept, read back, shown and compared."""

import json
import re
from functools import partial

import pytest
from cli.calling import call, one_line
from kept import record_paths, thorough_unless

from fp8bench import registry
from fp8bench.config.options import options_of, read
from fp8bench.config.request import OPTIONS
from fp8bench.kinds.one_record import OneRecord
from fp8bench.records import results
from fp8bench.records.layout import texts_of
from fp8bench.records.named import find_kept
from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import ROOT
from fp8bench.tables.render import FORMATS

EXAMPLES = {
    "run": "--mode baseline-bf16 --gpus 1 --batch-size 2 --rounds 1 --warmup 2 --steps 3 --min-time 0.01",
    "converge": "--mode baseline-bf16 --mode baseline-fp32 --gpus 1 --seeds 1 --steps 4 --batch-size 2 "
    f"--sequence-length 16 --text {ROOT / 'README.md'}",
    "gemm": "--shape 64,64,64 --precision bf16 --seconds 0.001",
    "numerics": "--mode baseline-bf16 --layer linear --input normal --width 32",
    "collectives": "--size 64K --dtype fp32 --rounds 1 --seconds 0.001",
}
"""Arguments of a call of each kind that takes seconds on any machine."""

OF_ONE_RECORD = [name for name in registry.KINDS if isinstance(registry.kind(name), OneRecord)]
OTHER = "p5"


def marked(names):
    return [thorough_unless(name not in ("converge", "run"), name) for name in names]


@pytest.fixture(scope="module", params=marked(registry.KINDS))
def kind(request):
    """Each kind in turn."""
    return registry.kind(request.param)


@pytest.fixture(scope="module")
def example(kind, tmp_path_factory):
    """The program in a folder where the kind's example was run, and how that ended."""
    folder = tmp_path_factory.mktemp(kind.name)
    fp8bench = partial(call, folder)
    return folder / "results", fp8bench, fp8bench(kind.name, *EXAMPLES[kind.name].split())


def records(folder, kind):
    return [results.read_of_kind(path, kind.record) for path in record_paths(folder, "cpu/*.json")]


@pytest.mark.parametrize("name", OF_ONE_RECORD)
def test_a_number_that_run_takes_too_has_the_bound_that_it_has_there(name):
    request = registry.kind(name).request
    bounds = {option: OPTIONS[option].limit for option in options_of(request).keys() & OPTIONS.keys()}
    assert any(bounds.values())
    for option, bound in bounds.items():
        if bound is not None:
            with pytest.raises(UsageError, match=f"the most is {bound.most:,}"):
                read(request, {option: str(bound.most + 1)}, name)


@pytest.mark.slow
def test_its_help_shows_the_options_of_its_example(kind):
    done = call(".", kind.name, "--help-all")
    assert (done.code, done.stderr) == (0, "")
    assert all(word in done.stdout for word in EXAMPLES[kind.name].split() if word.startswith("--"))


@pytest.mark.slow
class TestExample:
    def test_it_makes_one_record_that_survives_the_store(self, kind, example):
        folder, _, done = example
        assert done.code == 0, done.stderr
        (path,) = record_paths(folder, "cpu/*.json")
        record = results.read_of_kind(path, kind.record)
        assert texts_of(record)[0] == path.read_text()
        assert (record.kind, record.status, record.instance, record.source) == (kind.name, "ok", "cpu", "measured")
        assert record.machine is not None

    @pytest.mark.parametrize("form", ["table", *FORMATS])
    def test_it_is_shown_in_every_format(self, kind, example, form):
        folder, fp8bench, _ = example
        done = fp8bench("compare", "cpu", "--kind", kind.name, "--format", form)
        assert done.code == 0, done.stderr
        (record,) = records(folder, kind)
        if form == "json":
            assert [one["run_id"] for one in json.loads(done.stdout)] == [record.run_id]
        elif form == "csv":
            fields, first, *_ = done.stdout.splitlines()
            assert "run_id" in fields.split(",")
            assert record.run_id in first
        else:
            assert len(done.stdout.splitlines()) > 2

    def test_two_stand_side_by_side(self, kind, example):
        folder, fp8bench, _ = example
        (record,) = records(folder, kind)
        own = {"instance": OTHER, "run_id": f"{record.run_id}-copy"}
        if getattr(record, "samples", ()):
            # No two processes take the same times to the last digit.
            own["samples"] = [
                one.model_copy(update={"warmup_step_s": one.warmup_step_s[::-1]}) for one in record.samples
            ]
        results.write(record.model_copy(update=own), folder)
        done = fp8bench("compare", "cpu", OTHER, "--kind", kind.name)
        assert done.code == 0, done.stderr
        assert {"cpu", OTHER} <= set(re.findall(r"\w+", done.stdout))

    def test_an_instance_without_a_record_is_one_line(self, kind, example):
        _, fp8bench, _ = example
        done = fp8bench("compare", "p4de", "--kind", kind.name)
        assert done.code == 2
        assert "fp8bench: no record" in one_line(done)


@pytest.mark.slow
@pytest.mark.parametrize("kind", marked(OF_ONE_RECORD), indirect=True)
class TestOfOneRecord:
    def test_what_was_kept_is_shown_as_it_was_when_measured(self, kind, example):
        folder, fp8bench, done = example
        (record,) = records(folder, kind)
        assert find_kept(record.run_id, folder, kind.record) == record
        shown = fp8bench(kind.name, "--record", record.run_id)
        assert (shown.code, shown.stdout) == (0, done.stdout)

    def test_an_option_of_a_measurement_is_refused_beside_a_record(self, kind, example):
        _, fp8bench, _ = example
        done = fp8bench(kind.name, *EXAMPLES[kind.name].split(), "--record", "x")
        assert done.code == 2
        assert "belongs to a measurement" in one_line(done)
