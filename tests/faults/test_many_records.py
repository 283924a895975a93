"""A thousand records of which three hundred are faulty: the good ones are used, each bad one is named with its reason,
and no command dies of one.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import at, in_one_file, machine_called, measured, profile, published
from cli.calling import invoked
from report.made_gemm import gemm_record

from fp8bench.records import results
from fp8bench.schema.record import SCHEMA_VERSION

pytestmark = pytest.mark.slow

INSTANCE = "mine"


def whole() -> dict:
    return in_one_file(measured(INSTANCE, run_id="bad", profile=profile()))


def text(**changes: object) -> bytes:
    return json.dumps(whole() | changes).encode()


def samples(**changes: object) -> bytes:
    document = whole()
    document["samples"][0] |= changes
    return json.dumps(document).encode()


PICKLE = b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."

FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not JSON"),
    "spaces": (b" \n" * 100, "is not JSON"),
    "nul": (b"\0" * 4096, "is not JSON"),
    "binary": (bytes(range(256)) * 16, "is not JSON"),
    "pickle": (PICKLE, "is not JSON"),
    "utf-16": (text().decode().encode("utf-16"), "is not JSON"),
    "with a mark": (b"\xef\xbb\xbf" + text(), "is not JSON"),
    "cut off": (text()[:2000], "is not JSON"),
    "cut off at its end": (text()[:-1], "is not JSON"),
    "two documents": (text() + text(), "is not JSON"),
    "a list": (b"[]", "field the whole file"),
    "a number": (b"5", "field the whole file"),
    "deep": (b"[" * 100_000, "is not JSON"),
    "deep in a field": (b'{"schema_version": 3, "instance": "mine", "evidence": ' + b'{"a":' * 100_000, "is not JSON"),
    "newer": (text(schema_version=SCHEMA_VERSION + 1), f"schema version {SCHEMA_VERSION + 1}"),
    "of format 0": (text(schema_version=0), "field schema_version"),
    "of a negative format": (text(schema_version=-3), "field schema_version"),
    "of no format": (text(schema_version=None), "field schema_version"),
    "of a format in words": (text(schema_version="6"), "field schema_version"),
    "of a format that is true": (text(schema_version=True), "field schema_version"),
    "of a format with a point": (text(schema_version=SCHEMA_VERSION + 0.5), "field schema_version"),
    "a format of 5,000 digits": (text(schema_version=0).replace(b": 0", b": 1" + b"0" * 5000, 1), "is not JSON"),
    "of 2099": (text(created_utc="2099-01-01T00:00:00Z"), "field created_utc: 2099-01-01 is later than today"),
    "of the year 9999": (text(created_utc="9999-12-31T23:59:59-12:00"), "is later than today"),
    "without a zone": (text(created_utc="2026-05-01T00:00:00"), "field created_utc"),
    "without an instance": (text(instance=None), "field instance"),
    "of a list of instances": (text(instance=[INSTANCE]), "field instance"),
    "of a list of kinds": (text(kind=["run"]), "field kind"),
    "a field too many": (text(colour="green"), "field colour"),
    "an id that is a number": (text(run_id=5), "field run_id"),
    "a lone surrogate": (text(reason="\ud800"), "is not JSON"),
    "no samples": (text(samples=[]), "field samples"),
    "samples of none": (samples(step_s=[]), "at least 1 item"),
    "negative samples": (samples(step_s=[-0.1, 0.1, 0.1]), "greater than 0"),
    "samples that are not numbers": (samples(step_s=["0.1", None, 0.1]), "valid number"),
    "unequal samples": (samples(step_s=[0.1]), "different numbers of steps"),
    "infinite samples": (samples(step_s=[float("inf"), 0.1, 0.1]), "finite"),
    "10^400": (samples(step_s=[0.5, 0.1, 0.1]).replace(b"[0.5,", b"[1" + b"0" * 400 + b",", 1), "finite"),
    "1e400": (samples(step_s=[0.5, 0.1, 0.1]).replace(b"[0.5,", b"[1e400,", 1), "finite"),
    "ok without a summary": (text(summary=None), "needs a summary"),
    "a device": (b"/dev/zero", "Not a regular file"),
    "a link to itself": (b"loop", "Too many levels"),
    "a link to nothing": (b"nowhere", "No such file"),
    "a link out of the folder": (b"/etc/passwd", "is not JSON"),
    "a pipe": (b"", "Not a regular file"),
    "larger than any record": (b"", "Larger than"),
}  # fmt: skip

HOSTILE_NAMES = (
    b"\x1b[31mred", b"line\nbreak", b"\xff\xfe not utf-8", "‮right to left".encode(), b"=1+1", b"<script>x", b"`id`",
    b"$(id)", b"-rf", b"x" * 240, b"%s%n", b"a'b\"c", b"|cell|",
)  # fmt: skip


def put(folder: Path, name: str, data: bytes, place: int) -> Path:
    """A file with the fault of this name."""
    path = folder / f"{place:04}-{name.replace(' ', '-')}.json"
    if name == "a link to itself":
        path.symlink_to(path.name)
    elif name.startswith("a link") or name == "a device":
        path.symlink_to(data.decode())
    elif name == "a pipe":
        os.mkfifo(path)
    elif name == "larger than any record":
        with path.open("wb") as file:
            file.truncate(1 << 33)
    else:
        path.write_bytes(data)
    return path


@dataclass(frozen=True)
class Many:
    """A folder of results. good, bad: how many records are, of these faults each several times."""

    folder: Path
    good: int
    bad: int

    def faults(self) -> Iterator[tuple[int, str]]:
        names = list(FAULTS)
        return ((number, names[number % len(names)]) for number in range(self.bad))


@pytest.fixture(
    scope="module", params=[pytest.param((60, len(FAULTS))), pytest.param((700, 300), marks=pytest.mark.faults)]
)
def many(request, tmp_path_factory):
    """The good ones, one in seven of an older format; and every fault, some under hostile names."""
    good, bad = request.param
    found = Many(tmp_path_factory.mktemp("many") / "results", good, bad)
    place = found.folder / INSTANCE
    place.mkdir(parents=True)
    modes = ("baseline-bf16", "te-bf16")
    for number in range(good):
        named = {"run_id": f"good-{number:04}", "created_utc": at(number), "machine": machine_called("a")}
        record = measured(INSTANCE, modes[number % 2], minutes=number, **named)
        if number % 7:
            results.write(record, found.folder)
        else:
            (place / f"{record.run_id}.json").write_text(json.dumps(in_one_file(record, schema_version=3), indent=1))
    for number, fault in found.faults():
        put(place, fault, FAULTS[fault][0], number)
    for name in HOSTILE_NAMES:
        with open(os.path.join(bytes(place), name + b".json"), "wb") as file:
            file.write(b"{")
    return found


def test_the_good_are_used_and_each_bad_one_is_named_with_its_reason(many):
    found = results.read(many.folder, [INSTANCE])
    named = {broken.path.name: broken.reason for broken in found.broken}

    assert len({kept.path.name for kept in found if kept.path.name.startswith("good")}) == many.good
    for number, fault in many.faults():
        assert FAULTS[fault][1] in named[f"{number:04}-{fault.replace(' ', '-')}.json"], fault


@pytest.mark.parametrize("strict", [pytest.param(False, marks=pytest.mark.faults), True])
def test_a_table_is_shown_and_nothing_that_is_named_can_move_a_terminal(strict, many):
    done = invoked("compare", INSTANCE, "--format", "json", "--results-dir", many.folder, *["--strict"] * strict)
    lines = done.stderr.splitlines()

    assert done.exit_code == (4 if strict else 0)
    assert {row["mode"] for row in json.loads(done.stdout)} >= {"baseline-bf16", "te-bf16"}
    assert len(lines) >= many.bad + len(HOSTILE_NAMES)
    assert all(line.startswith("fp8bench: ") for line in lines)
    assert not [letter for letter in done.stderr if letter != "\n" and not letter.isprintable()]


COMMANDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "report": lambda out: ("report", INSTANCE, "-o", out / "page.html", "--force"),
    "explain": lambda _out: ("explain", f"{INSTANCE}:profiled"),
    "all of them": lambda _out: ("compare", INSTANCE, "--all", "--format", "csv"),
    "GEMMs": lambda _out: ("compare", INSTANCE, "--kind", "gemm"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.faults) if name == "all of them" else name for name in COMMANDS]
)
def test_no_other_command_dies_of_one(name, tmp_path):
    results_dir = tmp_path / "results"
    (results_dir / INSTANCE).mkdir(parents=True)
    for number, (fault, (data, _)) in enumerate(FAULTS.items()):
        put(results_dir / INSTANCE, fault, data, number)
    results.write(measured(INSTANCE, "profiled", profile=profile(), run_id="one"), results_dir)
    results.write(gemm_record(instance=INSTANCE, run_id="two"), results_dir)
    words = COMMANDS[name](tmp_path)
    for strict in ([], ["--strict"]) if name == "explain" else (["--strict"],):
        done = invoked(*words, "--results-dir", results_dir, *strict)
        assert (done.exit_code, done.stderr.count("not read: ") >= 15) == (4 if strict else 0, True), done.stderr


def test_so_do_none_of_those_that_look_after_results(many):
    done = invoked("results", "verify", "--format", "json", "--results-dir", many.folder)

    assert done.exit_code == 4
    assert len({one["file"] for one in json.loads(done.stdout)["bad"]}) == many.bad + len(HOSTILE_NAMES)


def test_a_figure_from_elsewhere_is_no_more_trusted(tmp_path):
    """A published figure stands in the folder of published ones, whatever it calls itself."""
    (tmp_path / "published").mkdir()
    document = in_one_file(published("p4d", run_id="../../../out"))
    (tmp_path / "published" / "r.json").write_text(json.dumps(document | {"instance": "../../p4d"}))
    done = invoked("compare", "p4d", "--results-dir", tmp_path)

    assert done.exit_code == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["published", "r.json"]
