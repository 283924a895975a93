"""Commands that train nothing import neither torch nor its kin, nor fsspec for a folder, and are quick."""

import json
import re
import shutil
import time
from hashlib import sha256
from pathlib import Path
from statistics import fmean, median

import pytest
from builders import at, machine_called, measured, profile, rank_samples, summary
from cli.calling import Outcome, call_python
from cli.home import IMPORT
from kept import installed

import fp8bench
from fp8bench.records.layout import texts_of

HEAVY = ("torch", "timm", "transformer_engine", "torchao", "fsspec")
NOT_FOR_AN_ANSWER = (*HEAVY, "yaml", "matplotlib")
"""The catalogue is JSON: only a user's own files are YAML."""

START_UP_LIMIT_S = 0.4
"""On a machine where the yardstick takes YARDSTICK_S or less; a slower one gets time in proportion."""

YARDSTICK = (
    "import asyncio, concurrent.futures, ctypes, decimal, doctest, email.mime.text, fractions, ftplib, http.server,"
    "imaplib, logging.config, multiprocessing.pool, optparse, pdb, smtplib, sqlite3, statistics, tarfile,"
    "unittest.mock,"
    "urllib.request, xml.dom.minidom, zipfile"
)
YARDSTICK_S = 0.2
ATTEMPTS = 40


def traps_in(folder, names=HEAVY):
    """Modules that raise when they are imported."""
    for name in names:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    return folder


@pytest.fixture
def trapped(tmp_path):
    """Run Python in an empty folder, with modules on its path that raise when torch or its kin is imported."""
    traps = traps_in(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()

    def call(*arguments: str) -> Outcome:
        return call_python(folder, *arguments, PYTHONPATH=str(traps))

    return call


EACH_IN_TURN = """
import importlib, sys, traceback
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except RuntimeError:
        traceback.print_exc()
"""


def test_the_traps_work_and_would_catch_a_run(trapped):
    done = trapped("-c", EACH_IN_TURN, *HEAVY)
    assert done.code == 0
    for name in HEAVY:
        assert f"RuntimeError: {name} was imported" in done.stderr
    done = trapped("-m", "fp8bench", "run", "--steps", "1", "--mode", "baseline-bf16", "--gpus", "1", "--rounds", "1")
    assert done.code != 0
    assert "torch was imported" in done.stderr


ANSWERED = """
 | fp8bench run
--help | Usage: fp8bench
compare p4d p5 | Which instance? p4d
list modes | te-fp8
list workloads | vit-huge
list instances | p5.48xlarge
numerics formats --cast 0.3952 --block mxfp8 | 0.40625
results import IMPORT | results/p5/
run --dry-run | vit-micro
run --help | --precision
explain --help | Where a mode's step goes
doctor --help | Usage: fp8bench doctor
scaling p5 --workload llm-7b | +17.6 %
collectives --help | --operation
converge --help | --seeds
"""
"""A command, and words of its answer."""

COMMANDS = dict(line.replace("IMPORT", IMPORT).split(" | ") for line in ANSWERED.strip("\n").splitlines())

ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
outcomes = {}
for command in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), None
    sys.argv = ["fp8bench", *command.split()]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            from fp8bench.__main__ import main
            main()
        except SystemExit as ended:
            code = ended.code
        except Exception as error:
            print(repr(error), file=sys.stderr)
    outcomes[command] = code, out.getvalue(), err.getvalue()
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of all commands in one fresh process. What is trapped fails each time that it is imported."""
    folder = tmp_path_factory.mktemp("folder")
    traps = str(traps_in(tmp_path_factory.mktemp("traps"), NOT_FOR_AN_ANSWER))
    done = call_python(folder, "-c", ONE_AFTER_ANOTHER, json.dumps(list(COMMANDS)), PYTHONPATH=traps)
    return {command: Outcome(*outcome) for command, outcome in json.loads(done.stdout).items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_trains_nothing_imports_no_torch(command, outcomes):
    done = outcomes[command]

    assert (done.code, done.stderr) == (0, "")
    assert COMMANDS[command] in done.stdout


@pytest.mark.slow
def test_plugins_of_pydantic_that_happen_to_be_installed_have_no_part(tmp_path):
    site, folder = tmp_path / "site", tmp_path / "folder"
    folder.mkdir()
    installed(site, "rude", "print('rude was imported')\nplugin = None\n", "[pydantic]\nrude = rude:plugin\n")
    make_a_model = "import pydantic; pydantic.create_model('Any', x=int)(x=1)"

    assert "rude was imported" in call_python(folder, "-c", make_a_model, PYTHONPATH=str(site)).stdout
    done = call_python(folder, "-m", "fp8bench", "compare", "p4d", "p5", PYTHONPATH=str(site))

    assert done.code == 0
    assert "rude" not in done.stdout


@pytest.mark.parametrize("command", [[], ["--help"], ["compare", "p4d", "p5"]], ids=lambda words: " ".join(words[:1]))
@pytest.mark.serial
def test_the_answer_comes_in_less_than_four_tenths_of_a_second(command, tmp_path):
    def timed(*arguments: str) -> float:
        start = time.perf_counter()
        # As a user's Python does, this one keeps compiled modules from the first call on.
        assert call_python(tmp_path, *arguments, PYTHONDONTWRITEBYTECODE="").code == 0
        return time.perf_counter() - start

    timed("-m", "fp8bench", *command)
    # Each beside a yardstick of the same moment, because a machine's pace changes; the median, because other work
    # lengthens now the one and now the other.
    shares = list[float]()
    while len(shares) < 3 or (median(shares) >= 1 and len(shares) < ATTEMPTS):
        slower = max(1.0, timed("-c", YARDSTICK) / YARDSTICK_S)
        shares.append(timed("-m", "fp8bench", *command) / slower / START_UP_LIMIT_S)

    assert median(shares) < 1, shares


def times(count: int, about: float) -> tuple[float, ...]:
    return tuple(about * (1 + ((number * 7919) % 104_729) / 10_472_900) for number in range(count))


@pytest.fixture
def many_records(tmp_path, request):
    """Records of one GPU, of so many machines in turn, with their samples beside them; gone after the test."""
    count, machines = request.param
    one = rank_samples(
        *(0, times(40, 0.1)),
        warmup_step_s=times(11, 0.2),
        host_s=times(40, 0.05),
        data_wait_s=times(40, 0.001),
        loss=times(51, 7.0),
    )
    box, took = machine_called("a"), summary(fmean(times(40, 0.1)), units_per_step=64)
    record = measured("p5", samples=(one,), summary=took, settings={"world_size": 1}, machine=box, profile=profile())
    text, samples = texts_of(record)
    created = json.loads(text)["created_utc"]
    folder = tmp_path / "results" / "p5"
    folder.mkdir(parents=True)
    for number in range(count):
        run_id = f"run-{number:05d}"
        moment = at(number).isoformat().replace("+00:00", "Z")
        warm = json.dumps([*shifted(record.samples[0].warmup_step_s, 1e-9 * number)])
        own = re.sub(r'(?<="warmup_step_s":) ?\[[^]]*\]', warm, samples, count=1)
        beside = own.replace(record.run_id, run_id).encode()
        (folder / f"{run_id}.samples.json").write_bytes(beside)
        mine = text.replace(record.run_id, run_id).replace(created, moment).replace(box.id, f"{number % machines:016x}")
        (folder / f"{run_id}.json").write_text(re.sub(r"[0-9a-f]{64}", sha256(beside).hexdigest(), mine))
    yield tmp_path
    shutil.rmtree(tmp_path / "results")


def shifted(times, by_s):
    """Times of another process that took as long as a whole: no two take the same to the last digit."""
    first, second, *others = times
    return first + by_s, second - by_s, *others


SOURCE = Path(fp8bench.__file__).parents[1]
COMPARED = """
import atexit, sys
from pathlib import Path
from fp8bench.cli.app import main
atexit.register(lambda: print(Path("/proc/self/status").read_text(), file=sys.stderr))
sys.argv = ["fp8bench", "compare", "p5", "--format", "json"]
main()
"""


@pytest.mark.serial
@pytest.mark.parametrize(
    ("many_records", "rows", "limit_s"),
    [((2000, 3), 3, 1.5), ((10_000, 300), 300, 4.0)],
    indirect=["many_records"],
)
def test_thousands_of_records_are_compared_in_time_and_memory(many_records, rows, limit_s):
    """On a slower machine in proportion, as above."""
    shares: list[float] = []
    while not shares or (min(shares) >= 1 and len(shares) < 5):
        begun_s = time.perf_counter()
        call_python(many_records, "-c", YARDSTICK)
        ready_s = time.perf_counter()
        done = call_python(many_records, "-c", COMPARED, PYTHONPATH=str(SOURCE))
        slower = max(1.0, (ready_s - begun_s) / YARDSTICK_S)
        shares.append((time.perf_counter() - ready_s) / slower / limit_s)
    found = json.loads(done.stdout)
    peak = re.search(r"VmHWM:\s+(\d+) kB", done.stderr)

    assert (done.code, done.stderr.split("Name:")[0]) == (0, "")
    assert (len(found), {row["rounds"] for row in found}) == (rows, {1})
    assert min(shares) < 1, shares
    assert peak is not None
    assert int(peak[1]) < 300_000
