"""The README and the docs show what the program prints: their tables are made again from the committed records and held
against them, and so are the figures in their sentences.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import tables
from cli.calling import call
from kept import record_paths

from fp8bench.kinds.run.columns import NAMES
from fp8bench.profiling.causes import ADVICE
from fp8bench.stats.certainty import BETWEEN_MACHINES

ROOT = Path(__file__).resolve().parents[1]
FRONT = (ROOT / "README.md").read_text()
README = "\n".join([FRONT, *(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))])
"""With the pages that go on where it ends."""
MADE = re.compile(r"<!-- made by: fp8bench (.+?) -->\n(.+?)\n<!-- end -->", re.DOTALL)
TABLES = MADE.findall(README)


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """A folder with the committed records alone: what was measured in this checkout lies beside them."""
    folder = tmp_path_factory.mktemp("committed")
    listed = subprocess.run(["git", "ls-files", "-z", "results"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), TABLES)
def test_a_table_in_the_readme_is_what_its_command_prints(command, shown, committed, monkeypatch):
    monkeypatch.chdir(committed)
    assert tables.printed(command) == shown


def test_the_readme_is_short_and_has_the_answer():
    assert len(FRONT.split()) <= 1500
    ((command, shown),) = MADE.findall(FRONT)
    assert command.startswith("compare ")
    assert "Which mode? te-fp8: " in shown
    assert "Which instance? " in shown


LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target, heading in LINK.findall(page.read_text()):
        found = page.parent / target
        assert found.exists(), target
        if heading:
            words = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            known = {re.sub(r"[^\w\- ]", "", word.lower()).replace(" ", "-") for word in words}
            assert heading[1:] in known, f"{target}{heading}"


def test_every_page_is_in_the_readmes_index():
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert set(re.findall(r"\]\(docs/([\w-]+\.md)", FRONT)) == there


def test_the_readme_has_tables_of_measured_and_of_published_rows():
    assert len(TABLES) >= 6
    assert any("te-fp8" in shown for _, shown in TABLES)
    assert any("published" in shown for _, shown in TABLES)
    assert any("casts and scales" in shown for _, shown in TABLES)


def test_the_ways_to_begin_are_targets_and_the_first_installs_what_measuring_needs_alone():
    makefile = (ROOT / "Makefile").read_text()
    begin = re.findall(r"^\$ make (\S+) +# (.+)$", README, re.MULTILINE)
    stamps = {target: re.findall(rf"^{target}: (.+)$", makefile, re.MULTILINE)[-1] for target, _ in begin}
    assert stamps == {"bench": "install", "test": "$(DEVELOPING)", "faults": "$(DEVELOPING)"}
    assert "installs what measuring needs" in dict(begin)["bench"]
    assert "adds developers' tools" in dict(begin)["test"]


RUNS = [words for words in dict.fromkeys(re.findall(r"`fp8bench (run(?: [^`]+)?)`", README)) if "://" not in words]
"""Examples of `run`, but those that keep records elsewhere."""
NEEDS = {
    "run --session latest": "no session",
    "run --workload my.net:Net": "No module named 'my'",
    "run --until-decided baseline/h200-1x --max-minutes 60": "baseline/h200-1x is no folder",
}
"""What is said of an example that needs something of the reader's own."""


def example(words):
    builds = "timm:" in words
    return pytest.param(words, marks=[pytest.mark.thorough] if builds else [])


@pytest.mark.slow
@pytest.mark.parametrize("words", [*map(example, RUNS)])
def test_an_example_of_run_is_accepted(words, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    done = call(tmp_path, *shlex.split(words.removesuffix(" --dry-run")), "--dry-run")
    # 3: this machine has no GPU, and nothing of it runs without one.
    assert done.code in ((2,) if words in NEEDS else (0, 3)), done.stderr
    assert NEEDS.get(words, "") in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted((ROOT / "configs" / "presets").glob("*.yaml")), ids=lambda path: path.name)
def test_every_preset_resolves(preset):
    done = call(ROOT, "run", "--config", str(preset), "--dry-run", "--json")
    assert done.code in (0, 3), done.stderr


LINES = re.findall(r"^\| (.+?), batch (\d+)(?: on each of (\d) GPUs)? \| (.+) \|$", README, re.MULTILINE)
SUMMARY = [
    (name, batch_size, f"{family}-{gpus or 1}x", *said)
    for name, batch_size, gpus, cells in LINES
    for family, said in zip(
        ("h200", "h100"), re.findall(r"([^|]+) \| ([^|]+) \| ([^|]+)(?: \| |$)", cells), strict=True
    )
    if said != ("-", "-", "-")
]
CALLED = {
    "`te-fp8`": ("te-fp8", "graphed", "vit-huge"),
    "`te-fp8`, 256 px, Adam, method 3": ("te-fp8", "graphed", "vit-huge-256"),
    "`torchao-float8`": ("torchao-float8", "compiled+graphed", "vit-huge"),
    "eager bf16": ("baseline-bf16", "eager", "vit-huge"),
}
"""Mode, execution and workload of a line of the summary."""


def compared(folder, instance, batch_size, workload, *options):
    """(rows by mode and execution, the reference)."""
    asked = ("--batch-size", batch_size, "--workload", workload, "--format", "json", *options)
    done = call(folder, "compare", instance, *asked)
    assert done.code == 0, done.stderr
    rows = json.loads(done.stdout)
    (reference,) = (row for row in rows if row["is_reference"])
    return {(row["mode"], row["execution"]): row for row in rows}, reference


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch_size", "instance", "speed", "gain", "energy"), SUMMARY)
def test_a_line_of_the_summary_is_what_the_records_say(name, batch_size, instance, speed, gain, energy, committed):
    *variant, workload = CALLED[name]
    rows, reference = compared(committed, instance, batch_size, workload)
    row = rows[tuple(variant)]
    low, high = row["speedup_ci_vs_reference"]
    assert speed == f"{row['speedup_vs_reference']:.2f}x ({low:.2f} to {high:.2f})"
    assert gain == f"{row['gain_vs_reference'] * 100:+.0f} %"
    assert energy == f"{(row['joules_per_unit'] / reference['joules_per_unit'] - 1) * 100:+.0f} %"


def test_the_summary_has_a_line_that_gains_and_one_that_loses():
    assert {line[4][0] for line in SUMMARY} == {"+", "-"}
    assert {line[2] for line in SUMMARY} == {"h200-1x", "h200-2x", "h100-1x"}
    assert {line[0] for line in SUMMARY} == set(CALLED)


@pytest.mark.slow
def test_the_gain_over_the_articles_baseline_is_what_the_records_say(committed):
    (claimed,) = re.findall(r"`te-fp8` is (\S+)x as fast as the eager bf16 that the articles compare with", README)
    rows, _ = compared(committed, "h200-1x", "64", "vit-huge")
    ratio = rows["baseline-bf16", "eager"]["step_time_s"] / rows["te-fp8", "graphed"]["step_time_s"]
    assert claimed == f"{ratio:.2f}"


@pytest.mark.slow
def test_what_the_h100_has_over_the_h200_is_what_the_records_say(committed):
    (more, longer) = re.search(
        r"trains (\d+) % more images for a dollar.+?takes (\d+) % longer", README, re.DOTALL
    ).groups()
    one, other = (compared(committed, of, "64", "vit-huge")[0]["te-fp8", "graphed"] for of in ("h100-1x", "h200-1x"))
    assert more == f"{(one['units_per_usd'] / other['units_per_usd'] - 1) * 100:.0f}"
    assert longer == f"{(one['step_time_s'] / other['step_time_s'] - 1) * 100:.0f}"


EVIDENCE = (ROOT / "evidence" / "README.md").read_text()


MACHINES = ("--results-dir", str(ROOT / "evidence" / "machines"))
CALLED_THERE = {
    "`te-fp8`": ("te-fp8", "graphed"),
    "compiled baseline": ("baseline-bf16", "compiled+graphed"),
    "`torchao-float8`": ("torchao-float8", "compiled+graphed"),
    "`te-bf16`": ("te-bf16", "graphed"),
}
"""Mode and execution of a line of the page of evidence."""


def by_machine(folder, instance, batch_size):
    """Rows of ViT-Huge by method 3 on machines where `te-fp8` was measured beside its reference."""
    asked = ("--group-by", "machine", "--workload", "vit-huge", "--batch-size", batch_size, "--format", "json")
    done = call(folder, "compare", instance, *MACHINES, *asked)
    assert done.code == 0, done.stderr
    rows = [row for row in json.loads(done.stdout) if row["status"] == "ok" and row["execution"] != "eager"]
    whole = {row["machine"] for row in rows if row["mode"] == "te-fp8" and row["speedup_vs_reference"]} - {None}
    return [row for row in rows if row["machine"] in whole]


def speedups(rows):
    said = sorted(f"{row['speedup_vs_reference']:.2f}x" for row in rows if row["mode"] == "te-fp8")
    return f"{', '.join(said[:-1])} and {said[-1]}"


def test_the_columns_that_the_page_about_compare_explains_are_columns():
    page = (ROOT / "docs" / "compare.md").read_text()
    (listed,) = re.findall(r"Not said by their names: (.+?)\n\n", page, re.DOTALL)
    assert {"value", "pareto"} <= set(re.findall(r"`([a-z-]+)`", listed)) <= set(NAMES)


EXPLAINED = sorted(set(re.findall(r"`fp8bench (explain [^`]+)`", README)))


@pytest.mark.slow
@pytest.mark.parametrize("words", EXPLAINED)
def test_an_example_of_explain_finds_two_records_of_the_same_work(words, committed):
    assert call(committed, *shlex.split(words)).code == 0


@pytest.mark.slow
def test_what_is_said_of_torchao_on_two_gpus_is_what_the_records_say(committed):
    (words, said) = re.findall(r"on two GPUs \(`fp8bench ([^`]+)`\)(.+?)\n\n", README, re.DOTALL)[0]
    shown = call(committed, *shlex.split(words)).stdout
    for part, sign, change in (
        ("casts and scales", "-", "less on casts"),
        ("norms, activations, sums", "+", "more on norms"),
    ):
        (difference,) = re.findall(rf"^{part} .+ ([-+][0-9.]+)$", shown, re.MULTILINE)
        assert f"{difference.removeprefix(sign)} ms {change}" in " ".join(said.split())
    against = []
    for instance in ("h200-2x", "h200-1x"):
        rows, _ = compared(committed, instance, "64", "vit-huge")
        ours, reference = (
            rows[mode, "compiled+graphed"]["step_time_s"] for mode in ("torchao-float8", "baseline-bf16")
        )
        against.append(ours / reference - 1)
    assert f"{-100 * against[0]:.1f} % shorter on two GPUs and {100 * against[1]:.1f} % longer on one" in " ".join(
        said.split()
    )


@pytest.mark.parametrize("mode", ["te-bf16", "te-bf16-article", "torchao-float8:tensorwise", "te-fp8:delayed"])
def test_the_gates_errors_are_what_the_records_say(mode):
    (cells,) = re.findall(rf"^\| `{mode}` \| ([0-9.]+) \| ([0-9.]+) \| (.+) \|$", README, re.MULTILINE)
    paths = record_paths(ROOT / "results" / "h200-1x", f"*-{mode.replace(':', '-')}-??????.json")
    records = [json.loads(path.read_text()) for path in paths]
    parities = [record["parity"] for record in records if record["fingerprint"]["workload"] == "vit-huge"]
    assert parities
    for parity in parities:
        assert (f"{parity['logits_error']:.2f}", f"{parity['input_gradient_error']:.2f}") == cells[:2]
        bounds = (parity["tolerance"][name] for name in ("logits", "input_gradient"))
        assert ", ".join(f"{bound:.2g}" for bound in bounds) == cells[2]


@pytest.mark.slow
def test_what_split_qkv_gains_is_what_its_records_say(committed):
    done = call(committed, "compare", "h200-1x", "--results-dir", str(ROOT / "evidence/split-qkv"), "--format", "json")
    rows = {(row["mode"], row["te_switches"]): row for row in json.loads(done.stdout)}
    pages = [(ROOT / "docs" / "models.md").read_text(), EVIDENCE]
    for mode in ("te-fp8", "te-bf16"):
        without, with_it = rows[mode, None], rows[mode, "split-qkv"]
        gain = f"{without['step_time_s'] / with_it['step_time_s']:.2f}x"
        cells = "[^|]*\\| ".join(f"{row['step_time_s'] * 1e3:.1f} " for row in (without, with_it))
        faster = [f"{row['speedup_vs_reference']:.2f}x" for row in (without, with_it)]
        for page in pages:
            assert re.search(rf"`{mode}[^|]*\| {cells}[^|]*\| {gain} \|", page)
        assert f"| {faster[0]}, with it {faster[1]} |" in pages[0]
    with_it, without = (f"{rows['te-fp8', name]['step_time_s'] * 1e3:.1f}" for name in ("split-qkv", None))
    assert f"{with_it} ms a step with it and {without} without" in ADVICE["split-qkv"]
    assert f"({with_it} ms a step)" in README


@pytest.mark.slow
@pytest.mark.parametrize(("instance", "gpu", "largest"), [("h200-1x", "H200", 256), ("h100-1x", "H100", 64)])
def test_what_sweeps_found_is_what_their_records_say(instance, gpu, largest, committed):
    """Beside compiled bf16 at the largest batch that was measured there."""

    def per_usd(*words):
        done = call(committed, "compare", instance, *words, "--workload", "vit-huge", "--format", "json")
        rows = [row for row in json.loads(done.stdout) if row["status"] == "ok"]
        return {(row["mode"], row["execution"], row["batch_size"]): row["units_per_usd"] for row in rows}

    swept = per_usd("--results-dir", str(ROOT / "evidence" / "sweeps"))
    (_, _, batch_size), most = max(swept.items(), key=lambda row: row[1])
    # By the same method as the sweeps.
    usual = per_usd(*MACHINES, "--batch-size", "64")
    said, sweeps = (" ".join(page.split()) for page in (README, (ROOT / "docs" / "sweep.md").read_text()))
    assert re.search(rf"{most:,.0f} (images for a dollar )?on an {gpu} \(batch {batch_size}", said)
    bf16 = {size: usd for (*label, size), usd in per_usd().items() if label == ["baseline-bf16", "compiled+graphed"]}
    assert max(bf16) == largest
    assert re.search(rf"Compiled bf16 .*{bf16[largest]:,.0f}", said)
    eager = usual["baseline-bf16", "eager", 64]
    assert f"{most:,.0f} images/USD" in sweeps
    assert re.search(rf"{most / eager:.2f} times (the images per USD|as many)", sweeps)


def with_interval(row):
    low, high = (end * 1e3 for end in row["step_time_ci_s"])
    return f"{row['step_time_s'] * 1e3:.1f} ({low:.1f}-{high:.1f})"


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", ["64", "256"])
def test_what_is_said_of_other_machines_is_what_their_records_say(batch_size, committed):
    rows = by_machine(committed, "h200-1x", batch_size)
    latest, _ = compared(committed, "h200-1x", batch_size, "vit-huge")
    (table,) = re.findall(rf"batch {batch_size}: (`te-fp8` \|.+?`te-fp8` over.+?\n)", EVIDENCE, re.DOTALL)[:1]
    for name, (mode, execution) in CALLED_THERE.items():
        ((cells, spread, last),) = re.findall(rf"{re.escape(name)} \| ([0-9. |]+) \| (\S+) % \| (.+) \|", table)
        found = [row["step_time_s"] for row in rows if row["mode"] == mode]
        assert sorted(cells.split(" | ")) == sorted(f"{step * 1e3:.1f}" for step in found)
        assert spread == f"{(max(found) / min(found) - 1) * 100:.1f}"
        assert last == with_interval(latest[mode, execution])
    row = latest["te-fp8", "graphed"]
    low, high = row["speedup_ci_vs_reference"]
    assert f"| {row['speedup_vs_reference']:.2f}x ({low:.2f}-{high:.2f}) |" in table


@pytest.mark.slow
def test_what_method_3_and_method_4_took_is_what_their_records_say(committed):
    lines = EVIDENCE.partition("| milliseconds a step (95 %) | one H100, method 3 |")[2]
    works = (("h100-1x", "64", "vit-huge"), ("h200-2x", "64", "vit-huge"), ("h200-1x", "4", "llm-1b"))
    found = [compared(committed, *work, *folder)[0] for work in works for folder in (MACHINES, ())]
    for name, key in CALLED_THERE.items():
        said = re.search(rf"{re.escape(name)} \| (.+) \|", lines)[1].split(" | ")
        assert said == [with_interval(rows[key]) if rows[key]["status"] == "ok" else "invalid" for rows in found]
    said = re.search(r"`te-fp8` over the baseline \| (.+) \|", lines)[1].split(" | ")
    assert said == [f"{rows['te-fp8', 'graphed']['speedup_vs_reference']:.2f}x" for rows in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("instance", "batch_size", "page"),
    [("h200-1x", "64", "README.md"), ("h200-1x", "256", "docs/compare.md"), ("h100-2x", "64", "evidence/README.md")],
)
def test_speedups_on_machines_of_one_type_are_what_their_records_say(instance, batch_size, page, committed):
    said = speedups(by_machine(committed, instance, batch_size))
    assert said in " ".join((ROOT / page).read_text().split())


@pytest.mark.slow
def test_no_two_machines_of_a_type_differ_by_more_than_a_verdict_between_machines_needs(committed):
    ratios = []
    for instance, batch_size in (("h200-1x", "64"), ("h200-1x", "256"), ("h100-2x", "64")):
        rows = by_machine(committed, instance, batch_size)
        for key in ("step_time_s", "speedup_vs_reference"):
            for mode in {row["mode"] for row in rows}:
                found = [row[key] for row in rows if row["mode"] == mode]
                ratios.append(max(found) / min(found) - 1)
    assert max(ratios) < BETWEEN_MACHINES
    assert f"{max(ratios) * 100:.1f} % in a speed-up" in " ".join(EVIDENCE.split())
