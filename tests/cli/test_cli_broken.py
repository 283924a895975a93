"""A broken file among the records, one that contradicts itself, or one of an instance stops no command that can do
without it: it is named on stderr, and the rest is shown.
"""

import json
import re

import pytest
from builders import in_one_file, measured, measured_on_cpu, profile, rounds
from cli.calling import call_python, invoked, keep, keep_all
from kept import record_paths
from report.made_gemm import gemm_record

from fp8bench.machine.identity import this_machines_identity
from fp8bench.records.files import samples_path
from fp8bench.schema.errors import MeasurementInvalid, UsageError
from fp8bench.schema.record import PROOF_VERSION, SCHEMA_VERSION


def rows(outcome):
    return [(row["mode"], row["rounds"]) for row in json.loads(outcome.stdout)]


@pytest.fixture
def results(tmp_path):
    """Three rounds of a baseline in an instance of one's own."""
    keep_all(rounds(0.1, 0.1, 0.1, instance="mine"), tmp_path / "results")
    return tmp_path / "results" / "mine"


def wrong_field(text):
    return text.replace('"batch_size": 64', '"batch_size": "many"', 1)


def newer(text):
    return text.replace('"schema_version": 9', f'"schema_version": {SCHEMA_VERSION + 1}, "news": []', 1)


def keep_in_one_file(record, results_dir):
    """As up to format 9, so that a sample can be wrong; a raw part that was changed has another digest."""
    path = keep(record, results_dir)
    samples_path(path).unlink()
    path.write_text(json.dumps(in_one_file(record), indent=1))
    return path


def wrong_sample(text):
    document = json.loads(text)
    document["samples"][0]["step_s"][0] = -0.1
    return json.dumps(document, indent=1)


# What else may be wrong with a file, tests/faults/test_many_records.py has with every reason.
@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        (lambda _text: "{", "line 1 is not JSON"),
        (wrong_field, ", field config.batch_size: "),
        (newer, f"has schema version {SCHEMA_VERSION + 1}, and this fp8bench reads up to {SCHEMA_VERSION}"),
        (wrong_sample, ", field samples.0.step_s.0: "),
    ],
    ids=["cut off", "a field", "newer", "a sample"],
)
def test_compare_names_it_with_file_line_and_reason_and_shows_the_rest(breaking, said, results, command):
    path = keep_in_one_file(measured("mine", "te-bf16", minutes=9), results.parent)
    path.write_text(breaking(path.read_text()))
    done = command("compare", "mine", "--format", "json")
    (line,) = done.stderr.splitlines()

    assert rows(done) == [("baseline-bf16", 3)]
    assert command("compare", "mine", "--strict", "--format", "json", code=4).stdout == done.stdout
    assert line.startswith(f"fp8bench: warning: not read: results/mine/{path.name} ")
    assert said in line


def test_explain_refuses_a_broken_one_that_is_named_and_else_takes_another(results, command):
    keep(measured("mine", "te-bf16", minutes=8, profile=profile()), results.parent)
    path = keep_in_one_file(measured("mine", "te-bf16", minutes=9, profile=profile()), results.parent)
    path.write_text(wrong_sample(path.read_text()))
    assert command("explain", "mine:te-bf16").stderr.count("warning: not read: ") == 1
    for breaking, said in ((wrong_field, r"field config\.batch_size: "), (newer, "Upgrade fp8bench")):
        path.write_text(breaking(path.read_text()))
        with pytest.raises(UsageError, match=said):
            command("explain", path)


@pytest.mark.parametrize("words", ["compare mine --kind gemm", "gemm --record products"])
def test_so_do_searches_for_other_kinds(words, results, command):
    keep(gemm_record(run_id="products", instance="mine"), results.parent)
    (results / "products-2.json").write_text("{")
    said = command(*words.split()).stderr
    assert "warning: not read: results/mine/products-2.json line 1 is not JSON" in said


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 4)])
def test_run_names_a_broken_one_beside_its_own_and_keeps_what_it_measured(words, code, tmp_path, run_with):
    place = tmp_path / "results" / "cpu"
    place.mkdir(parents=True)
    for name, text in (("empty", ""), ("half", "{")):
        (place / f"{name}.json").write_text(text)
    (place / "zero.json").symlink_to("/dev/zero")
    said = run_with([0.1], "--mode", "baseline-bf16", "--rounds", "1", *words, code=code)
    assert said.stderr.count("warning: not read: ") == 3
    assert "baseline-bf16" in said.stdout
    assert len(record_paths(place, "2*-baseline-bf16-*.json")) == 1


@pytest.mark.parametrize("breaking", [wrong_sample, wrong_field], ids=["a sample", "a field"])
def test_an_instance_of_which_no_record_can_be_read_is_omitted_and_named(breaking, results, command):
    path = keep_in_one_file(measured("other", "te-bf16", minutes=9), results.parent)
    path.write_text(breaking(path.read_text()))
    both = command("compare", "other", "mine", "--format", "json")
    assert rows(both) == [("baseline-bf16", 3)]
    assert f"warning: not read: {path.relative_to(results.parent.parent)} line " in both.stderr
    command("report", "-o", "page.html")
    for strict, refusal in (((), UsageError), (("--strict",), MeasurementInvalid)):
        with pytest.raises(refusal, match="no record of other can be read; the warnings name the files"):
            command("compare", "other", *strict)
    command("compare", "other", "mine", "--strict", code=4)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two modes, three rounds each; one round of te-bf16 has ten times its units."""
    monkeypatch.chdir(tmp_path)
    three = (0.1, 0.1004, 0.0997)
    for mode in ("baseline-bf16", "te-bf16"):
        keep_all(rounds(*three, mode=mode, session_id="monday", instance="h100-1x"), tmp_path / "results")
    keep_all(rounds(*three, session_id="sunday", instance="h100-1x", minutes=-100), tmp_path / "before")
    one_gpu = {"session_id": "one", "instance": "h100-1x", "settings": {"world_size": 1}, "minutes": -10}
    keep_all(rounds(0.09, 0.09, **one_gpu), tmp_path / "results")
    path = record_paths(tmp_path / "results" / "h100-1x", "*te-bf16*.json")[-1]
    document = json.loads(path.read_text())
    for name in ("units_per_step", "throughput_per_s"):
        document["summary"][name] *= 10
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "words", ["compare h100-1x", "check --against before", "report h100-1x -o page.html", "scaling h100-1x"]
)
def test_it_is_named_and_left_out_and_the_rest_is_shown(words, folder):
    done = invoked(*words.split())
    assert done.exit_code == 0
    assert [word for word in (folder.name, "left out", "units_per_step") if word not in done.stderr] == []


def test_its_row_rests_on_the_others_and_it_is_refused_where_it_is_named(folder):
    rows = json.loads(invoked("compare", "h100-1x", "--format", "json").stdout)
    (row,) = (row for row in rows if row["mode"] == "te-bf16")
    assert row["rounds"] == 2
    assert row["throughput_per_s"] == pytest.approx(512 / 0.1002, rel=1e-3)
    with pytest.raises(UsageError, match="contradicts itself"):
        invoked("explain", str(folder))
    done = invoked("results", "verify")
    assert (done.exit_code, folder.name in done.stdout) == (4, True)


def test_rows_of_an_older_proof_are_told_in_one_note(tmp_path, command, rows_of):
    for mode, version in (("baseline-bf16", None), ("te-bf16", PROOF_VERSION)):
        for record in rounds(0.1, 0.1004, 0.0997, mode=mode, session_id="monday", instance="h100-1x"):
            proved = record.evidence.model_copy(update={"proof_version": version})
            keep(record.model_copy(update={"evidence": proved}), tmp_path / "results")
    (note,) = (line for line in command("compare", "h100-1x").stdout.splitlines() if "older rules" in line)
    assert "h100-1x:baseline-bf16/eager" in note
    assert "te-bf16" not in note
    versions = {row["mode"]: row["proof_version"] for row in rows_of("compare", "h100-1x")}
    assert versions == {"baseline-bf16": 1, "te-bf16": PROOF_VERSION}


OF_P5 = "key: p5\ngpu: H100-SXM5-80GB\ngpu_count: 8\n"
NAMED = "line 1: its key is 'p5', and its folder is 'renamed'"


@pytest.fixture
def renamed(tmp_path):
    """Records of two instances; the folder of one of them was renamed, and has its instance.yaml in it."""
    results_dir = tmp_path / "results"
    for instance in ("p4d", "p5"):
        keep(measured(instance), results_dir)
    (results_dir / "p5" / "instance.yaml").write_text(OF_P5)
    (results_dir / "p5").rename(results_dir / "renamed")


@pytest.mark.parametrize("words", ["compare p4d", "list instances", "report", "run --dry-run --mode baseline-bf16"])
def test_other_instances_are_shown_and_the_file_is_named(words, renamed, command, tmp_path):
    done = command(*words.split())
    told = f"fp8bench: warning: not read: results/renamed/instance.yaml {NAMED}"
    if words == "report":
        assert {"p4d", "p5"} <= set(re.findall(r"\w+", (tmp_path / "report.html").read_text()))
        assert told in done.stderr
    elif not words.startswith("run"):
        assert "p4d" in done.stdout
        assert done.stderr == f"{told}\n"


@pytest.mark.parametrize(
    "words",
    [
        *("compare p5", "compare p4d p5", "compare p5.48xlarge", "compare renamed"),
        *("report p5", "report --reference p5:baseline-bf16", "run --dry-run --instance p5"),
    ],
)
def test_its_own_is_refused_by_file_and_line(words, renamed, command):
    with pytest.raises(UsageError, match=f"^results/renamed/instance.yaml {NAMED}. Give both"):
        command(*words.split())


def test_a_dry_run_costs_what_this_machine_alone_does(command, tmp_path):
    machine = this_machines_identity(None)
    if machine is None:
        pytest.skip("this machine cannot be told from others")
    keep(measured_on_cpu(), tmp_path / "results")
    (tmp_path / "results" / "cpu" / "instance.yaml").write_text(
        "key: cpu\ngpu: null\ngpu_count: 0\nprices:\n"
        f"- {{usd_per_hour: 3.5, purchase: on_demand, as_of: 2026-01-01, source: ours, machine: {machine.id}}}\n"
    )
    assert "3.50 USD an hour" in command("run", "--dry-run", "--mode", "baseline-bf16").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        *("gemm --shape 32,32,32", "numerics", "converge"),
        *("list workloads vit-micro", "list workloads timm:vit_tiny_patch16_224"),
    ],
)
def test_a_torch_that_does_not_import_is_one_line_with_its_reason(words, tmp_path):
    library = tmp_path / "damaged"
    library.mkdir()
    (library / "torch.py").write_text(r"raise ImportError('libtorch.so: \x1b[31mundefined symbol')")
    outcome = call_python(tmp_path, "-m", "fp8bench", *words.split(), PYTHONPATH=str(library))
    reason = r"ImportError: libtorch.so: \x1b[31mundefined symbol"
    assert f"torch cannot be imported: {reason}. Install it" in outcome.stderr.splitlines()[-1]
    assert "Traceback" not in outcome.stderr
    assert (outcome.code, outcome.stdout) == (3, "")
