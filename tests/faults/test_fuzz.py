"""Whatever the bytes of a file, the values of a record or the words of a command line: an answer, or one error of the
program's own family. A little of it here; for minutes, with other seeds, in `make faults`.
"""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from builders import in_one_file, machine_called, measured, profile, published, rounds
from cli.calling import invoked
from kept import record_paths
from report.made_gemm import gemm_record

from fp8bench import registry
from fp8bench.config.request import OPTIONS, resolve
from fp8bench.kinds.converge.measure import trainings_in
from fp8bench.predict.step import known as predictions_known
from fp8bench.pricing import catalog as catalogs
from fp8bench.profiling.kernels import read_trace
from fp8bench.records import layout, results
from fp8bench.records.files import samples_path
from fp8bench.records.results import verify
from fp8bench.schema.errors import Fp8benchError
from fp8bench.schema.files import PREDICTION_ERRORS_JSON, read_text
from fp8bench.schema.record import Record, ThroughputRecord
from fp8bench.schema.yaml_text import parse_mapping

ODD_NUMBERS: tuple[Any, ...] = (0, -1, 1, 2, 3, 1e-300, 1e300, -1e300, 1e-9, 0.5, 2**31, 2**53, 2**63, 10**30, 10**400)
ODD_TEXTS: tuple[Any, ...] = (
    "", " ", "a", "\x00", "\x1b[31m", "\u202e", "é" * 50, "x" * 3000, "nan", "1e999", "-", "=1+1", "../..", "/", "<b>",
    "te-fp8:delayed", "p5", "2026-05-01", "2026-05-01T10:00:00Z", "0001-01-01T00:00:00+14:00", "h200-1x", "{}", "%s",
    "\n",
)  # fmt: skip
ODD: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"a": 1}, [None], [0.1], *ODD_NUMBERS, *ODD_TEXTS)


def mutated(data: bytes, random: Random) -> bytes:
    """The bytes with one to four faults."""
    found = bytearray(data)
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(found) + 1)
        length = random.choice((1, 1, 2, 8, 64, len(found) // 2 + 1))
        what = random.randrange(7)
        if what == 0 and place < len(found):
            found[place] ^= 1 << random.randrange(8)
        elif what == 1:
            del found[place : place + length]
        elif what == 2:
            found[place:place] = random.randbytes(min(length, 64))
        elif what == 3:
            found[place:place] = found[place : place + length]
        elif what == 4:
            del found[place:]
        elif what == 5:
            found[place:place] = json.dumps(random.choice(ODD[:-10])).encode("utf-8", "replace")
        else:
            digits = [at for at, byte in enumerate(found) if 48 <= byte <= 57]
            if digits:
                found[random.choice(digits)] = random.choice(b"0123456789-.eE+")
    return bytes(found)


def exchanged(document: Any, random: Random) -> Any:
    """The document with one to three of its values exchanged for odd ones, put in twice, or left out."""
    found = json.loads(json.dumps(document))
    for _ in range(random.randint(1, 3)):
        holder, key = _drawn(found, random)
        old = holder[key]
        what = random.randrange(6)
        if what == 0 and isinstance(holder, dict):
            del holder[key]
        elif what == 1 and isinstance(holder, list):
            holder.insert(key, old)
        elif what == 2 and isinstance(old, float | int):
            holder[key] = old * random.choice((-1, 0, 1e-12, 1e12, 1e-200, 1e200)) if abs(old) < 1e100 else 0
        elif isinstance(old, float | int) and not isinstance(old, bool):
            holder[key] = random.choice(ODD_NUMBERS)
        elif isinstance(old, str):
            holder[key] = random.choice(ODD_TEXTS)
        else:
            holder[key] = random.choice(ODD)
    return found


def _drawn(document: Any, random: Random) -> Any:
    """A place in it: each field of a level is as likely as another, however much is below it."""
    key = random.choice(list(document) if isinstance(document, dict) else range(len(document)))
    below = document[key]
    if isinstance(below, dict | list) and below and random.random() < 0.9:
        return _drawn(below, random)
    return document, key


MODELS = {**{name: registry.kind(name).record for name in registry.KINDS}, "throughput": ThroughputRecord}
HERE = Path(__file__).parent
GOLDEN = [
    *(HERE.parent / "records" / "data").glob("*article*.json"),
    *(path for path in record_paths(HERE / "golden") if path.stat().st_size < 30_000),
]
CONFIG = b"mode: [te-fp8:delayed, baseline-bf16]\nbatch_size: 8\nmin_time_s: 0.5\nresults_dir: x\nprecision: 1%\n"
INSTANCE = (
    b"key: mine\ngpu: H200-SXM-141GB\ngpu_count: 1\n"
    b"prices:\n- usd_per_hour: 3.5\n  purchase: on_demand\n  as_of: 2026-05-01\n  source: me\n"
)
SNAPSHOT = b"instance,usd_per_hour,as_of,purchase,region,source\n"
TRACE = json.dumps(
    {
        "fp8bench": {"mode": "te-bf16", "steps": 1, "device": "cuda", "step_time_s": 0.1},
        "traceEvents": [
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "ts": 1.0,
                "dur": 2.0,
                "pid": 0,
                "tid": 7,
                "args": {"stream": 7},
            },
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaGraphLaunch",
                "ts": 0.5,
                "dur": 0.1,
                "args": {"correlation": 1},
            },
        ],
    }
).encode()
FOREVER = 10**9


def read_every_way(path: Path) -> None:
    """A file of results, by each who may meet it."""
    folder = path.parent
    layout.see(path)
    for model in MODELS.values():
        layout.whole(path, model)
        layout.read(path, model)
    verify(folder, MODELS)
    results.counts(folder)
    results.read(folder, ["mine", "cpu", "p5"])


def of_instance(path: Path) -> None:
    catalogs.load_beside([path])
    catalogs.laid_over(catalogs.load(), path)


def of_config(path: Path) -> None:
    text = read_text(path)
    resolve({}, {}, parse_mapping(text, path), str(path), text)


READERS: dict[str, tuple[str, list[bytes], Callable[[Path], object]]] = {
    "record": ("r.json", [path.read_bytes() for path in GOLDEN], read_every_way),
    "instance": ("mine/instance.yaml", [INSTANCE], of_instance),
    "prices": ("prices/20260501.csv", [SNAPSHOT], of_instance),
    "configuration": ("c.yaml", [CONFIG], of_config),
    "trace": ("t.json", [TRACE, gzip.compress(TRACE, mtime=0)], read_trace),
    "trainings": (".c.jsonl", [b"\n{}\n", b'\n{"trained": {"mode": "a"}}\n'], trainings_in),
    "predictions": ("p.json", [PREDICTION_ERRORS_JSON.read_bytes()[:5000]], predictions_known),
}


def fuzz(seeds: range, seconds: float, one: Callable[[Random], object]) -> int:
    """Draw until the time is up; returns how often. What leaves the family is raised with its seed."""
    until, done = time.monotonic() + seconds, 0
    said: list[str] = []
    for seed in seeds:
        if time.monotonic() > until:
            break
        try:
            one(Random(seed))
        except Fp8benchError as error:
            said.append(str(error))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        done += 1
    assert all(one.strip() for one in said)
    return done


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("seeds", "seconds"),
    [(range(40), 0.1), pytest.param(range(1000, FOREVER), 33, marks=pytest.mark.faults)],
    ids=["a moment", "for long"],
)
def test_mutated_bytes_are_refused_in_the_programs_own_words(name, seeds, seconds, tmp_path):
    file, originals, read = READERS[name]
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)

    def one(random: Random) -> None:
        path.write_bytes(mutated(random.choice(originals), random))
        read(path)

    assert fuzz(seeds, seconds, one) > 0


def documents() -> list[dict[str, Any]]:
    """Of records that one table shows, and of one that stopped."""
    made = [
        *rounds(0.1, 0.11, instance="p5", profile=profile(), machine=machine_called("a")),
        *rounds(0.2, 0.21, instance="p5", mode="te-bf16", minutes=60, profile=profile(), machine=machine_called("a")),
        measured("p5", "te-fp8", minutes=99),
        gemm_record(instance="p5"),
        published("p5"),
    ]
    return [in_one_file(record) for record in made]


SHOWN = (
    ("compare", "p5", "--format", "json"),
    ("compare", "p5", "--wide", "--format", "markdown"),
    ("compare", "p5", "--all", "--format", "csv", "--allow-mismatch"),
    ("report", "p5", "--force", "-o", "page.html"),
    ("compare", "p5", "--kind", "gemm"),
    ("explain", "p5:te-bf16", "p5:baseline-bf16"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "seconds"),
    [(range(10), 1.0), pytest.param(range(1000, FOREVER), 120, marks=pytest.mark.faults)],
    ids=["a moment", "for long"],
)
def test_a_record_whose_values_are_odd_kills_no_table_and_no_page(seeds, seconds, tmp_path, monkeypatch):
    """Valid, and absurd: a step of 1e-300 s, no kernels, a time of the year 1."""
    monkeypatch.chdir(tmp_path)
    originals = documents()

    def one(random: Random) -> None:
        place = random.randrange(len(originals))
        for number, document in enumerate(originals):
            odd = exchanged(document, random) if number == place else document
            path = tmp_path / "results" / "p5" / f"{number}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(odd))
        invoked(*random.choice(SHOWN))

    assert fuzz(seeds, seconds, one) > 0


@pytest.mark.parametrize(
    ("seeds", "seconds"),
    [(range(150), 0.3), pytest.param(range(1000, FOREVER), 20, marks=pytest.mark.faults)],
    ids=["a moment", "for long"],
)
def test_any_value_of_any_setting_is_taken_or_refused(seeds, seconds):
    def one(random: Random) -> None:
        names = random.sample(sorted(OPTIONS), 3)
        settings = {name: random.choice((*ODD, "2", "auto", "1%", "0.5")) for name in names}
        sources: list[dict[str, Any]] = [{}, {}, {}]
        for name, value in settings.items():
            random.choice(sources)[name] = value
        environ = {f"FP8BENCH_{name.upper()}": str(value) for name, value in sources[1].items()}
        resolve(sources[0], environ, sources[2], "c.yaml", "a: 1\n")

    assert fuzz(seeds, seconds, one) > 0


WORDS = (
    "1",
    "2",
    "auto",
    "off",
    "te-bf16",
    "baseline-bf16",
    "vit-micro",
    "0",
    "-1",
    "1%",
    "cpu",
    "x",
    "1e9",
    "é",
    "\x1b[31m",
    "ssh://h/p",
)


@pytest.mark.parametrize(
    ("seeds", "seconds"),
    [(range(8), 0.6), pytest.param(range(1000, FOREVER), 60, marks=pytest.mark.faults)],
    ids=["a moment", "for long"],
)
def test_any_command_line_is_answered_or_refused_in_a_dry_run(seeds, seconds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import typer

    flags = [f"--{name.replace('_', '-')}" for name in OPTIONS if name not in ("results_dir", "timeout_s")]

    def one(random: Random) -> None:
        words = [word for flag in random.sample(flags, random.randint(1, 4)) for word in (flag, random.choice(WORDS))]
        try:
            done = invoked("run", "--dry-run", *words, *random.choice(([], ["--json"], ["--quiet"])))
        except typer.BadParameter.__mro__[2]:
            return
        assert done.exit_code in (0, 2, 3), (words, done.output)

    assert fuzz(seeds, seconds, one) > 0
    assert list(tmp_path.rglob("*")) == []


def test_a_record_is_what_was_written(tmp_path):
    """Round trip, for each golden record and whatever text stands in it."""
    from hypothesis import given, settings
    from hypothesis import strategies as st

    from fp8bench.schema.private import fit

    @settings(max_examples=30, derandomize=True, database=None)
    @given(reason=st.text(min_size=1), attention=st.text(), ratio=st.floats(allow_nan=False, allow_infinity=False))
    def holds(reason: str, attention: str, ratio: float) -> None:
        record = measured("mine", run_id="r")
        assert record.evidence is not None
        said = {"warnings": (reason,), "attention": attention, "details": {"ratio": ratio, attention: attention}}
        record = record.model_copy(update={"evidence": record.evidence.model_copy(update=said)})
        path = tmp_path / "mine" / "r.json"
        for name in (path, samples_path(path)):
            name.unlink(missing_ok=True)
        results.write(record, tmp_path)
        assert results.read_record(path) == fit(record)

    holds()


def test_a_configuration_and_an_instance_are_what_was_written():
    from hypothesis import given, settings
    from hypothesis import strategies as st

    from fp8bench.schema.config import RunConfig
    from fp8bench.schema.instance import Instance, Price

    text = st.text(st.characters(exclude_categories=["Cs"]))
    price = st.builds(
        Price,
        usd_per_hour=st.floats(min_value=0.01, max_value=1000),
        purchase=st.sampled_from(["on_demand", "spot", "capacity_block"]),
        as_of=st.dates(),
        source=text,
    )
    instance = st.builds(
        Instance, key=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True), gpu=text,
        gpu_count=st.integers(1, 64),
        prices=st.tuples(price),
    )  # fmt: skip
    config = st.builds(
        RunConfig, mode=text, recipe=st.none() | text, workload=text, device=st.sampled_from(["cuda", "cpu"]),
        world_size=st.integers(1, 10**6), batch_size=st.integers(1, 2**20), warmup=st.integers(0, 10**6),
        steps=st.integers(1, 10**6), compile=st.sampled_from(["auto", "on", "off", "blocks"]),
        data=st.sampled_from(["loader", "device"]), workers=st.integers(0, 100), seed=st.integers(0, 2**31),
        te_attention=st.sampled_from(["te", "sdpa"]), min_time_s=st.floats(0, 1e6),
    )  # fmt: skip

    @settings(max_examples=60, derandomize=True, database=None)
    @given(one=instance | config)
    def holds(one: Any) -> None:
        assert type(one).model_validate_json(one.model_dump_json()) == one
        assert type(one).model_validate(one.model_dump()) == one

    holds()


@pytest.mark.parametrize(
    "path",
    [path for path in GOLDEN if path.name[17:].startswith(("te-", "base", "torchao"))],
    ids=lambda path: path.name[:34],
)
def test_a_field_that_no_format_had_is_refused_in_every_format(path, tmp_path):
    document = json.loads(path.read_text()) | {"colour": "green"}
    copy = tmp_path / path.name
    copy.write_text(json.dumps(document))
    with pytest.raises(Fp8benchError, match="colour"):
        results.read_of_kind(copy, Record)
