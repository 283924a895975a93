"""The nightly workflow: its own steps, in its own order, on this CPU; and that no code of others reaches the runner."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import fork_server
import junitparser
import pytest
import yaml
from cli.calling import environment, forking_program
from kept import record_paths

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
(JOB,) = WORKFLOW["jobs"].values()
# YAML reads a bare `on` as true.
TRIGGERS = WORKFLOW[True]

RUN = (
    "--mode outside-waits --workload outside-linear --gpus 1 --batch-size 2 "
    "--data device --rounds 4 --steps 8 --min-time 0.01 --warmup 1"
)
NONE_RUNS = RUN.replace("outside-waits", "outside-unavailable")
ONE_OF_TWO = f"{RUN} --mode outside-unavailable"
TWO = f"{RUN} --mode outside-polite"
SCRIPT = ".github/nightly.sh"
WAITS = {"OUTSIDE_WAIT_S": "1", "NIGHTLY_LIMIT": "90%"}
"""Steps beside which no noise of a busy host shows, and a limit that their intervals decide."""


class Host:
    """A host on which nights pass. The scripts are copied, so that what they make is not made in the project."""

    def __init__(self, folder, site):
        self.folder = folder
        self.outcomes = {}
        (folder / ".github").mkdir(parents=True)
        shutil.copy(ROOT / ".github" / "nightly.sh", folder / ".github")
        program = forking_program(folder / "fp8bench", *fork_server.FP8BENCH)
        self.variables = environment(
            NIGHTLY_FP8BENCH=str(program),
            NIGHTLY_STATE=str(folder / "state"),
            NIGHTLY_DOCTOR="--quick",
            NIGHTLY_RUN=RUN,
            PYTHONPATH=str(site),
            GITHUB_STEP_SUMMARY=str(folder / "summary.md"),
        )

    def runs(self, *words, **variables):
        """What a shell does there."""
        own = {"cwd": self.folder, "env": {**self.variables, **variables}}
        return subprocess.run(["bash", *words], **own, capture_output=True, text=True, timeout=250, check=False)

    def night(self, **variables):
        """The steps of the job that are commands, each where its condition holds; returns what they said."""
        self.outcomes = {}
        said = {}
        for step in JOB["steps"]:
            if "run" not in step:
                continue
            name = step["name"]
            if not self._is_due(step.get("if")):
                self.outcomes[name] = "skipped"
                continue
            done = self.runs("-eo", "pipefail", "-c", step["run"], **variables)
            said[name] = done.stdout + done.stderr
            self.outcomes[name] = "success" if done.returncode == 0 else "failure"
        return said

    def _is_due(self, condition):
        if condition is None:
            return "failure" not in self.outcomes.values()
        assert condition == "always() && steps.run.outcome != 'skipped'"
        return self.outcomes["Run"] != "skipped"

    @property
    def passed(self):
        return set(self.outcomes.values()) == {"success"}


def whole_nights(host, of):
    """How many nights with records of this CPU are kept."""
    return len([*(host.folder / "state" / of).glob("*/cpu")])


def records(folder):
    return sum(len(record_paths(night)) for night in folder.iterdir())


@pytest.fixture
def host(tmp_path, outside_site):
    return Host(tmp_path / "checkout", outside_site)


@pytest.mark.thorough
def test_noise_passes_a_planted_slow_down_fails_and_a_mode_that_is_gone_is_named(host):
    said = host.night(**WAITS)
    assert host.passed, "\n".join(said.values())
    assert "no reference yet" in said["Check"]
    assert whole_nights(host, "reference") == 1

    said = host.night(**WAITS)
    assert host.passed, "\n".join(said.values())
    assert said["Check"].startswith("Passed: ")
    assert "cpu:outside-waits/eager" in (host.folder / "nightly" / "junit.xml").read_text()
    assert (whole_nights(host, "reference"), whole_nights(host, "nights")) == (2, 2)
    assert "outside-waits/eager, 2 x 1: no change in 2 nights, too few to tell" in said["Report"]

    said = host.night(**{**WAITS, "OUTSIDE_WAIT_S": "3"})
    assert host.outcomes == {
        "Set up": "success",
        "Doctor": "success",
        "Run": "success",
        "Check": "failure",
        "Report": "success",
    }, "\n".join(said.values())
    assert "Failed: regression: cpu:outside-waits/eager" in said["Check"]
    out = host.folder / "nightly"
    assert junitparser.JUnitXml.fromfile(str(out / "junit.xml")).failures == 1
    for name in ("check.csv", "doctor.txt", "report.html"):
        assert (out / name).stat().st_size, name
    summary = (host.folder / "summary.md").read_text()
    assert "Failed: regression" in summary
    assert "## fp8bench compare" in summary

    said = host.night(NIGHTLY_RUN=NONE_RUNS)
    assert (host.outcomes["Run"], host.outcomes["Check"]) == ("failure", "failure"), said
    assert "missing: cpu:outside-waits/eager" in said["Check"]
    assert "nightly.sh adopt" in said["Check"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (NONE_RUNS, "outside-unavailable"),
        (ONE_OF_TWO, "outside-unavailable"),
        (RUN.replace("--rounds 4", "--rounds 1"), "outside-waits"),
    ],
    ids=["none ran", "one of two ran", "one round"],
)
def test_a_night_that_is_not_whole_is_no_reference_and_the_next_that_is_becomes_it(host, options, named):
    said = host.night(NIGHTLY_RUN=options)
    assert host.outcomes["Check"] == "failure", said
    assert named in said["Check"]
    assert "does not become the reference" in (host.folder / "summary.md").read_text()
    assert not (host.folder / "state" / "reference").exists()
    said = host.night()
    assert host.passed, "\n".join(said.values())
    assert whole_nights(host, "reference") == 1


@pytest.mark.thorough
def test_an_undecided_night_is_given_rounds_then_warns_and_the_third_in_a_row_fails(host):
    host.night(**WAITS)
    assert host.passed
    one_round = {**WAITS, "NIGHTLY_RUN": RUN.replace("--rounds 4", "--rounds 1")}
    for nights, outcome in enumerate(("success", "success", "failure"), 1):
        said = host.night(**one_round, NIGHTLY_MINUTES="0.001")
        assert host.outcomes["Check"] == outcome, said
        assert f"::warning title=fp8bench check::undecided, night {nights} in a row" in said["Check"]
        assert "--until-decided" in said["Run"]
    said = host.night(**one_round)
    assert host.passed, "\n".join(said.values())
    assert not (host.folder / "state" / "undecided").exists()


@pytest.mark.thorough
def test_a_mode_that_came_later_fails_with_its_name_until_it_is_adopted(host):
    host.night(**WAITS)
    assert host.passed
    said = host.night(**WAITS, NIGHTLY_RUN=TWO)
    assert (host.outcomes["Run"], host.outcomes["Check"]) == ("success", "failure"), said
    assert "new: cpu:outside-polite/eager" in said["Check"]
    assert "nightly.sh adopt" in said["Check"]
    assert host.runs(SCRIPT, "adopt").returncode == 0
    state = host.folder / "state"
    assert records(state / "reference") == 8
    assert records(state / "reference.old") == 4
    said = host.night(**WAITS, NIGHTLY_RUN=ONE_OF_TWO)
    assert "missing: cpu:outside-polite/eager" in said["Check"]
    refused = host.runs(SCRIPT, "adopt")
    assert (refused.returncode, "ended with 3" in refused.stdout) == (2, True)
    assert records(state / "reference") == 8


@pytest.mark.slow
def test_a_folder_that_no_night_made_is_not_removed_and_nothing_that_was_measured_becomes_no_reference(host):
    (host.folder / "nightly").mkdir()
    (host.folder / "nightly" / "thesis.tex").write_text("years of work")
    done = host.runs(SCRIPT, "setup")
    assert done.returncode == 2
    assert "no night made it" in done.stderr
    assert (host.folder / "nightly" / "thesis.tex").exists()
    shutil.rmtree(host.folder / "nightly")
    assert host.runs(SCRIPT, "setup").returncode == 0
    done = host.runs(SCRIPT, "adopt")
    assert done.returncode == 2
    assert not (host.folder / "state" / "reference").exists()


def test_only_a_schedule_off_the_hour_and_a_hand_start_it():
    assert set(TRIGGERS) == {"schedule", "workflow_dispatch"}
    (schedule,) = TRIGGERS["schedule"]
    minute = schedule["cron"].split()[0]
    assert minute.isdecimal()
    assert int(minute) % 15, "everybody's jobs start then"


def test_a_fork_does_not_run_it_and_a_host_runs_one_at_a_time_to_its_end():
    for part in ("github.repository_owner == vars.NIGHTLY_OWNER", "!github.event.repository.fork", "refs/heads/main"):
        assert part in JOB["if"]
    assert "self-hosted" in JOB["runs-on"]
    assert JOB["concurrency"] == {"group": "nightly-${{ matrix.host }}", "cancel-in-progress": False}
    assert JOB["timeout-minutes"] <= 360
    assert (WORKFLOW["permissions"], JOB["permissions"]) == ({}, {"contents": "read"})


def test_every_action_is_pinned_by_its_commit_and_artifacts_are_kept_of_failures_too():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for action in re.findall(r"uses: (\S+)", path.read_text()):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), f"{path.name}: {action}"
    (upload,) = (step for step in JOB["steps"] if "upload-artifact" in step.get("uses", ""))
    assert upload["if"] == "always()"
    assert os.path.normpath(upload["with"]["path"]) == "nightly"


def test_the_steps_are_those_of_the_script_and_hold_no_expression():
    commands = [step["run"] for step in JOB["steps"] if "run" in step]
    assert commands == [f".github/nightly.sh {name}" for name in ("setup", "doctor", "run", "check", "report")]
