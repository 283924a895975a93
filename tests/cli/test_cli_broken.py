"""A broken file among the records stops no command: it is named on stderr, and the rest is shown."""

import json

import pytest
from builders import measured, profile, rounds
from cli.calling import keep, one_line
from kept import record_paths
from report.made_gemm import gemm_record

from fp8bench.schema.record import SCHEMA_VERSION


def rows(outcome):
    return [(row["mode"], row["rounds"]) for row in json.loads(outcome.stdout)]


@pytest.fixture
def results(tmp_path):
    """Three rounds of a baseline in an instance of one's own."""
    for record in rounds(0.1, 0.1, 0.1, instance="mine"):
        keep(record, tmp_path / "results")
    return tmp_path / "results" / "mine"


def wrong_field(text):
    return text.replace('"batch_size": 64', '"batch_size": "many"', 1)


def newer(text):
    return text.replace(f'"schema_version": {SCHEMA_VERSION}', f'"schema_version": {SCHEMA_VERSION + 1}, "news": []', 1)


def with_samples(value):
    def wrong(text):
        document = json.loads(text)
        document["samples"][0]["step_s"] = [value] * 3 if value is not None else []
        return json.dumps(document, indent=1)

    return wrong


@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        (lambda _text: "{", "line 1 is not JSON"),
        (lambda _text: "[" * 100_000, "line 1 is not JSON"),
        (wrong_field, ", field config.batch_size: "),
        (newer, f"has schema version {SCHEMA_VERSION + 1}, and this fp8bench reads up to {SCHEMA_VERSION}"),
        (with_samples(None), ", field samples.0.step_s: "),
        (with_samples(0.0), ", field samples.0.step_s.0: "),
        (with_samples(-0.1), ", field samples.0.step_s.0: "),
        (with_samples(float("inf")), ", field samples.0.step_s.0: "),
        (with_samples(float("nan")), ", field samples.0.step_s.0: "),
    ],
    ids=["cut off", "deep", "a field", "newer", "no samples", "zero", "negative", "infinite", "not a number"],
)
def test_compare_names_it_with_file_line_and_reason_and_shows_the_rest(breaking, said, results, fp8bench_in):
    path = keep(measured("mine", "te-bf16", minutes=9), results.parent)
    path.write_text(breaking(path.read_text()))
    outcome = fp8bench_in("compare", "mine", "--format", "json")
    (line,) = outcome.stderr.splitlines()

    assert (outcome.code, rows(outcome)) == (0, [("baseline-bf16", 3)])
    assert line.startswith(f"fp8bench: warning: not read: results/mine/{path.name} ")
    assert said in line


def test_with_strict_it_is_exit_code_4_and_the_rest_is_shown_all_the_same(results, fp8bench_in):
    assert fp8bench_in("compare", "mine", "--strict").code == 0
    (results / "wrong.json").write_text("{")
    outcome = fp8bench_in("compare", "mine", "--strict", "--format", "json")

    assert (outcome.code, rows(outcome)) == (4, [("baseline-bf16", 3)])


def test_where_the_latest_session_is_broken_the_one_before_it_is_shown(results, fp8bench_in):
    for record in rounds(0.2, 0.2, instance="mine", session_id="20260502T100000Z-bbbbbb", minutes=60):
        path = keep(record, results.parent)
        path.write_text(with_samples(0.0)(path.read_text()))
    outcome = fp8bench_in("compare", "mine", "--format", "json")

    assert rows(outcome) == [("baseline-bf16", 3)]
    assert outcome.stderr.count("warning: not read: ") == 2


def test_nothing_but_broken_records_is_no_record(tmp_path, fp8bench_in):
    path = keep(measured("p6-b200"), tmp_path / "results")
    path.write_text(wrong_field(path.read_text()))
    outcome = fp8bench_in("compare", "p6-b200")

    assert outcome.code == 2
    assert [line.split(": ")[1].partition(";")[0] for line in outcome.stderr.splitlines()] == [
        "warning",
        "no record of p6-b200 can be read",
    ]


def test_a_record_that_is_named_itself_is_refused(results, fp8bench_in):
    path = keep(measured("mine", "te-bf16", minutes=9, profile=profile()), results.parent)
    path.write_text(wrong_field(path.read_text()))
    outcome = fp8bench_in("explain", str(path))

    assert outcome.code == 2
    assert "field config.batch_size: " in one_line(outcome)


def test_explain_names_a_broken_one_and_takes_another(results, fp8bench_in):
    keep(measured("mine", "te-bf16", minutes=8, profile=profile()), results.parent)
    path = keep(measured("mine", "te-bf16", minutes=9, profile=profile()), results.parent)
    path.write_text(with_samples(0.0)(path.read_text()))
    outcome = fp8bench_in("explain", "mine:te-bf16", "--format", "json")

    assert outcome.code == 0, outcome.stderr
    assert outcome.stderr.count("warning: not read: ") == 1


@pytest.mark.parametrize("command", [("compare", "mine", "--kind", "gemm"), ("gemm", "--record", "products")])
def test_so_do_searches_for_other_kinds(command, results, fp8bench_in):
    keep(gemm_record(run_id="products", instance="mine"), results.parent)
    (results / "products-2.json").write_text("{")
    outcome = fp8bench_in(*command, "--format", "json")

    assert outcome.code == 0, outcome.stderr
    assert "warning: not read: results/mine/products-2.json line 1 is not JSON" in outcome.stderr


def test_a_name_that_nobody_knows_is_answered_with_what_lies_there(results, fp8bench_in):
    outcome = fp8bench_in("compare", "mein")

    assert outcome.code == 2
    assert "results has records of mine (3)" in one_line(outcome)


def test_a_folder_that_was_moved_is_found(results, fp8bench_in):
    (results.parent / "old").mkdir()
    results.rename(results.parent / "old" / "mine-in-may")

    assert rows(fp8bench_in("compare", "mine", "--format", "json")) == [("baseline-bf16", 3)]


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 4)])
def test_run_names_a_broken_one_beside_its_own_and_keeps_what_it_measured(
    words, code, tmp_path, fp8bench_in, outside_site
):
    place = tmp_path / "results" / "cpu"
    place.mkdir(parents=True)
    for name, text in (("empty", ""), ("half", "{")):
        (place / f"{name}.json").write_text(text)
    (place / "zero.json").symlink_to("/dev/zero")
    once = ("--gpus", "1", "--batch-size", "2", "--rounds", "1", "--warmup", "1", "--steps", "3", "--min-time", "0.01")
    mode = ("--mode", "baseline-bf16", "--workload", "outside-linear")
    outcome = fp8bench_in("run", *mode, *once, *words, PYTHONPATH=str(outside_site))

    assert outcome.code == code, outcome.stderr
    assert outcome.stderr.count("warning: not read: ") == 3
    assert "baseline-bf16" in outcome.stdout
    assert len(record_paths(place, "2*-baseline-bf16-*.json")) == 1


@pytest.mark.parametrize("breaking", [with_samples(-0.1), wrong_field], ids=["a sample", "a field"])
def test_an_instance_of_which_no_record_can_be_read_is_omitted_and_named(breaking, results, fp8bench_in):
    path = keep(measured("other", "te-bf16", minutes=9), results.parent)
    path.write_text(breaking(path.read_text()))

    both = fp8bench_in("compare", "other", "mine", "--format", "json")
    assert (both.code, rows(both)) == (0, [("baseline-bf16", 3)])
    assert f"warning: not read: {path.relative_to(results.parent.parent)} line " in both.stderr
    page = fp8bench_in("report", "-o", "page.html")
    assert page.code == 0, page.stderr
    alone = fp8bench_in("compare", "other")
    assert alone.code == 2
    assert "no record of other can be read; the warnings name the files" in alone.stderr
    assert fp8bench_in("compare", "other", "mine", "--strict").code == 4
