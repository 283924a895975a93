"""`fp8bench sweep` with made-up turns in the place of processes, and `run --batch-size auto`; what both refuse."""

import json
import re

import pytest
from builders import reports_of
from cli.calling import call
from kept import documents, record_paths

from fp8bench.launch import batch_size
from fp8bench.launch import session as launching
from fp8bench.launch.processes.watch import Executor
from fp8bench.machine.identity import Here
from fp8bench.schema.rank import RankMemory, RankReport

QUICK = ("--steps", "20", "--warmup", "1", "--min-time", "0")
SWEEP = ("sweep", "--gpus", "1", *QUICK, "--price", "3.6")
STEP_S = {"baseline-bf16": 0.1, "torchao-float8:tensorwise": 0.15, "torchao-float8:rowwise": 0.2}


class Machine(Executor):
    """A step takes the mode's time for 16 samples, and memory by the sample; it can be interrupted."""

    def __init__(self, interrupt_at=None, broken=()):
        self.ran, self.interrupt_at, self.broken = [], interrupt_at, broken
        self.closed = False

    def close(self):
        self.closed = True

    def run(self, task, watch=None):
        config = task.config
        self.ran.append((config.mode_label, config.batch_size, config.steps))
        if len(self.ran) == self.interrupt_at:
            raise KeyboardInterrupt
        if config.mode_label in self.broken:
            return [RankReport(rank=0, status="failed", reason="it broke", remedy="Fix it", cause="crash")]
        if config.batch_size > 1000:
            # The first to be blamed only lost its connection.
            lost = {"status": "failed", "reason": "no memory", "remedy": "Less"}
            return [RankReport(rank=rank, cause=cause, **lost) for rank, cause in enumerate(("crash", "oom"))]
        # Larger batches are a little better.
        better = 0.0 if config.batch_size == 16 else 0.03 + 1e-5 * config.batch_size
        step_s = STEP_S[config.mode_label] * config.batch_size / 16 * (1 - better)
        peak = (100 + config.batch_size) * 2**20
        memory = RankMemory(rank=0, peak_allocated_bytes=None, peak_reserved_bytes=None, peak_host_bytes=peak)
        return reports_of(config, step_s * (1 + len(self.ran) * 1e-4), memory=memory)


@pytest.fixture
def fp8bench(main_with, monkeypatch):
    """The program with a made-up machine of 1 GiB. Returns its exit code."""
    monkeypatch.setattr(Here, "unlike", lambda _self, _record: [])
    monkeypatch.setattr(batch_size, "room_bytes", lambda *_asked: 2**30)
    return main_with


def kept(folder):
    return documents(folder, "results/cpu/*.json")


def test_a_round_has_steps_of_its_own_where_none_are_given(fp8bench):
    machine = Machine()
    fp8bench(machine, "sweep", "--gpus", "1", "--warmup", "1", "--min-time", "0", "--look-steps", "7")
    assert {steps for _, _, steps in machine.ran} == {7, 30}


def test_with_emit_it_looks_at_what_a_script_can_be_written_of_and_writes_that_of_the_winner(
    fp8bench, tmp_path, monkeypatch
):
    # The records of made-up turns have no sizes of a model.
    monkeypatch.setattr(
        "fp8bench.kinds.run.script.script", lambda record: f"{record.config.mode} {record.config.compile}"
    )
    asked = ("--mode", "baseline-bf16", "--compile", "auto,blocks", *QUICK, "--emit")
    said = fp8bench(Machine(), "sweep", "--gpus", "1", *asked, "train.py")
    assert "baseline-bf16 as a training script: train.py" in said.stderr
    assert "no script can be written for --compile blocks" in said.stdout
    assert (tmp_path / "train.py").read_text() == "baseline-bf16 auto"
    refused = fp8bench(Machine(), "sweep", "--gpus", "2", *asked, "other.py", code=2)
    assert "no script can be written for 2 processes" in refused.stderr


class TestSweep:
    def test_it_ends_with_the_winner_its_command_the_runner_up_and_what_was_not_tried(self, fp8bench):
        machine = Machine()
        said = fp8bench(machine, *SWEEP, "--session", "mine", "--look-steps", "7")

        # Six looks, then two rounds of the best two, there and back.
        assert [steps for _, _, steps in machine.ran] == [7] * 6 + [20] * 4
        assert {label for label, _, steps in machine.ran if steps == 20} == {"baseline-bf16"}
        assert machine.closed
        first = said.stdout.splitlines()[0]
        assert re.match(
            r"Cheapest of 6 tried: baseline-bf16 at batch 32, eager, with 164,\d+ images/USD \(.*\) in 2 rounds\.",
            first,
        )
        assert "Run it: fp8bench run --mode baseline-bf16 --workload vit-micro --gpus 1 --batch-size 32" in said.stdout
        assert "Runner-up: baseline-bf16 at batch 16, eager" in said.stdout
        assert "the two differ: it takes 1.03" in said.stdout
        assert "rank 3 of 6 looks, of which 2 go on" in said.stdout
        assert "needs an NVIDIA GPU, and this machine shows none: torchao-float8:rowwise_with_gw_hp" in said.stdout
        assert "fp8bench: look 1: baseline-bf16, batch 16, compile auto: about 15 s" in said.stderr

    def test_the_winners_command_is_one_that_run_takes_and_rounds_are_records_like_any_other(self, fp8bench, tmp_path):
        found = json.loads(fp8bench(Machine(), *SWEEP, "--session", "mine", "--json").stdout)
        words = found["winner"]["command"].split()
        assert words[0] == "fp8bench"
        fp8bench(Machine(), *words[1:], "--dry-run")
        assert found["winner"]["place"] == 1
        assert found["told_apart"] is True
        assert found["winner"]["units_per_usd_ci"][0] < found["winner"]["units_per_usd"]
        # Looks are in no table.
        records = kept(tmp_path)
        places = [(r["session"]["session_id"], r["session"]["round"]) for r in records]
        assert sorted(places) == [("mine", n) for n in (1, 1, 2, 2)]
        assert {r["config"]["steps"] for r in records} == {20}
        rows = json.loads(fp8bench(Machine(), "compare", "cpu", "--format", "json").stdout)
        assert {row["rounds"] for row in rows} == {2}

    @pytest.mark.slow
    @pytest.mark.parametrize("cut", [1, 4, 8])
    def test_interrupted_at_any_moment_it_goes_on_and_repeats_nothing(self, cut, fp8bench):
        whole = Machine()
        fp8bench(whole, *SWEEP, "--session", "whole", "--results-dir", "other")
        first, second = Machine(interrupt_at=cut), Machine()
        said = fp8bench(first, *SWEEP, "--session", "mine", code=130).stderr
        assert "run the same command with --session mine" in said
        fp8bench(second, *SWEEP, "--session", "latest" if cut > 1 else "mine")

        assert first.ran[:-1] + second.ran == whole.ran

    def test_under_its_name_other_work_is_refused_by_the_flags_that_differ(self, fp8bench):
        fp8bench(Machine(interrupt_at=2), *SWEEP, "--session", "mine", code=130)
        said = fp8bench(Machine(), *SWEEP, "--seed", "1", "--session", "mine", code=2).stderr
        assert "sweep 'mine' is of --seed 0 (now 1). Give the same again, or choose another name with" in said
        said = fp8bench(Machine(), *SWEEP, "--gpus", "2", "--session", "mine", code=2).stderr
        assert "sweep 'mine' is of --gpus 1 (now 2)" in said

    def test_what_failed_is_told_with_its_cause_and_where_nothing_is_left_that_has_the_exit_code(self, fp8bench):
        out = fp8bench(Machine(broken=("baseline-bf16",)), *SWEEP).stdout
        assert "Cheapest of 6 tried: torchao-float8:tensorwise at batch 32" in out
        assert re.search(r"baseline-bf16 +16 .* failed: it broke", out)
        said = fp8bench(Machine(broken=tuple(STEP_S)), *SWEEP, code=5)
        assert said.stdout == ""
        assert "no configuration is left after 6 looks; the last one: failed: it broke. Fix it." in said.stderr
        said = fp8bench(Machine(), "sweep", "--mode", "te-fp8", code=3).stderr
        assert "no configuration can run here: needs an NVIDIA GPU" in said

    def test_with_auto_the_best_get_the_largest_batch_that_fits(self, fp8bench, tmp_path):
        """1 GiB less its headroom holds 100 MiB and a MiB for each of 832 samples."""
        winner = json.loads(fp8bench(Machine(), *SWEEP, "--batch-size", "auto", "--json").stdout)["winner"]

        assert (winner["mode"], winner["batch_size"] > 200) == ("baseline-bf16", True)
        searches = [r["session"]["batch_search"] for r in kept(tmp_path)]
        assert all(search["tries"][0]["batch_size"] == 16 for search in searches)

    def test_where_too_little_is_left_for_a_mode_it_says_that_it_was_not_tried(self, fp8bench, monkeypatch):
        machine = Machine()
        monkeypatch.setattr(launching.run_sweep, "__defaults__", (lambda: 20.0 * len(machine.ran),))
        found = json.loads(fp8bench(machine, *SWEEP, "--budget", "45s", "--json").stdout)

        assert [label for label, *_ in machine.ran] == ["baseline-bf16", "baseline-bf16"]
        assert found["modes_not_tried"] == ["torchao-float8"]
        assert (found["winner"]["rounds"], found["runner_up"]) == (1, None)
        # Within a budget: tests/launch/test_halving. What it left is named with the command that goes on.
        machine.ran.clear()
        said = fp8bench(machine, *SWEEP, "--budget", "0.18USD", "--session", "mine").stdout
        assert "Ended by the budget of" in said
        assert "`fp8bench sweep --session mine` with the same options goes on, and repeats nothing." in said


class TestDryRun:
    SWEEP = (*SWEEP, "--rounds", "3")

    def test_it_shows_the_looks_their_count_time_and_cost_and_runs_and_writes_nothing(self, fp8bench, tmp_path):
        machine = Machine()
        lines = fp8bench(machine, *self.SWEEP, "--dry-run").stdout.splitlines()

        assert lines[:4] == [
            "Would look at 6 configurations of cpu; then 3 rounds of the best, at most 6 turns.",
            "Time: at least 90 s for the looks, and 90 s for the rounds if none is dropped early.",
            "Cost: about 0.18 USD at 3.60 USD an hour.",
            "Of work without a record, only what a start and torch.compile take is counted.",
        ]
        assert re.match(
            r" *1 +baseline-bf16, batch 16, compile auto .* 15$",
            next(line for line in lines if "baseline-bf16" in line),
        )
        assert "needs an NVIDIA GPU, and this machine shows none: torchao-float8:rowwise_with_gw_hp" in "\n".join(lines)
        assert machine.ran == []
        assert list(tmp_path.iterdir()) == []

    def test_json_has_all_of_it_in_the_order_in_which_the_sweep_looks(self, fp8bench):
        def planned(*words):
            return json.loads(
                fp8bench(Machine(), *self.SWEEP, "--budget", "100s", "--dry-run", "--json", *words).stdout
            )

        plan = planned("--batch-size", "auto")
        assert [one["mode"] for one in plan["looks"]] == [*STEP_S]
        assert (plan["looks_seconds"], plan["rounds"], plan["round_turns"], plan["rounds_seconds"]) == (45, 3, 6, 90)
        assert (plan["usd"], plan["usd_per_hour"], plan["budget_seconds"]) == (pytest.approx(0.135), 3.6, 100)
        assert (plan["batch_sizes"], plan["known"]) == (True, False)

        looks, machine = planned()["looks"], Machine()
        fp8bench(machine, *self.SWEEP, "--look-steps", "7")
        looked = [(label, size) for label, size, steps in machine.ran if steps == 7]
        assert looked[:2] == [("baseline-bf16", 16), ("torchao-float8:tensorwise", 16)]
        assert [(one["mode"], one["batch_size"]) for one in looks[:2]] == looked[:2]
        assert {(one["mode"], one["batch_size"]) for one in looks} == set(looked)
        assert [one["when"] for one in looks[:2]] == ["first", "first"]
        # 15 s each; the third leaves two rounds of two, which take 60 s.
        assert [one["within_budget"] for one in looks] == [True, True, False, False, False, False]

    @pytest.mark.parametrize(
        ("settings", "tried"),
        [
            ("", "attention te, split-qkv"),
            ("te_switch: [fused-qkv]", "attention te, fused-qkv"),
            ("te_switch: [none]", "attention te"),
        ],
    )
    def test_switches_that_only_gain_are_on_unless_the_user_chose(self, settings, tried, fp8bench, tmp_path):
        asked = f"mode: te-bf16\nworkload: gpt-layer-micro\nbatch_size: 16\n{settings}\n"
        (tmp_path / "mine.yaml").write_text(asked)
        out = fp8bench(Machine(), *self.SWEEP, "--config", str(tmp_path / "mine.yaml"), "--dry-run").stdout
        [said] = re.findall(r"shows none: te-bf16, batch 16, compile auto, (attention .+?)(?:;|$)", out)
        assert said == tried

    def test_of_a_sweep_that_is_resumed_it_shows_what_is_left_by_the_times_of_its_records(self, fp8bench):
        fp8bench(Machine(interrupt_at=5), *self.SWEEP, "--session", "mine", code=130)
        machine = Machine()
        out = fp8bench(machine, *self.SWEEP, "--session", "mine", "--budget", "60s", "--dry-run").stdout

        assert "Would look at 2 configurations of cpu, and 4 are done; then 3 rounds" in out
        assert "The budget of 60s ends it earlier. At most" in out
        assert "Cost: about 0.06 USD" in out
        assert machine.ran == []


class TestBatchAuto:
    RUN = ("run", "--gpus", "1", *QUICK, "--rounds", "1", "--batch-size", "auto")

    def test_each_mode_is_run_at_the_largest_size_that_fits_and_later_calls_search_no_more(self, fp8bench, tmp_path):
        """100 MiB, one for each sample, and 8 % of a GiB free."""
        machine = Machine()
        said = fp8bench(machine, *self.RUN, "--session", "mine").stderr
        sizes = [size for label, size, steps in machine.ran if (label, steps) == ("baseline-bf16", 3)]
        search = kept(tmp_path)[0]["session"]["batch_search"]

        assert sizes == [one["batch_size"] for one in search["tries"]] == [16, 32, 256, 832]
        assert (search["memory_bytes"], search["headroom"]) == (2**30, 0.08)
        assert "baseline-bf16: batch size 832" in said
        tried = record_paths(tmp_path, "results/.batch-sizes/cpu/*.json")
        for words in (("run", "--gpus", "1", "--rounds", "2", "--session", "mine"), self.RUN):
            machine = Machine()
            fp8bench(machine, *words)
            assert sorted(machine.ran) == [("baseline-bf16", 832, 20), ("torchao-float8:tensorwise", 832, 20)]
        assert all(r["session"]["batch_search"] for r in kept(tmp_path))
        assert record_paths(tmp_path, "results/.batch-sizes/cpu/*.json") == tried

    @pytest.mark.parametrize("cut", [2, 3, 4, 6])
    def test_an_interrupted_search_goes_on_from_the_sizes_that_were_tried(self, cut, fp8bench, tmp_path):
        whole, first, second = Machine(), Machine(interrupt_at=cut), Machine()
        fp8bench(whole, *self.RUN, "--results-dir", "other")
        said = fp8bench(first, *self.RUN, code=130).stderr
        assert "Run the same command again: the sizes that were tried are kept" in said
        assert kept(tmp_path) == []
        fp8bench(second, *self.RUN)

        assert first.ran[: cut - 1] + second.ran == whole.ran
        [search, other] = [r["session"]["batch_search"]["tries"] for r in kept(tmp_path)]
        assert [one["batch_size"] for one in search] == [one["batch_size"] for one in other] == [16, 32, 256, 832]
        # No record is named that no table shows.
        assert {one["run_id"] for one in (*search, *other)} == {None}

    def test_where_no_size_leaves_the_headroom_each_call_says_so_and_no_table_has_a_try(
        self, fp8bench, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(batch_size, "room_bytes", lambda *_asked: 100 * 2**20)
        for _call in range(2):
            said = fp8bench(Machine(), *self.RUN, "--mode", "baseline-bf16", code=5).stderr
        records = kept(tmp_path)

        assert [(r["status"], r["cause"], r["summary"]) for r in records] == [("failed", "oom", None)] * 2
        assert records[0]["reason"] == "batch 16 takes 0.1 GiB of 0.1 GiB, of which 8 % are to stay free"
        assert "batch 16: no headroom, 0.1 GiB of 0.1, of which 0.0 are to stay free" in said

    def test_one_rank_without_memory_makes_a_size_too_large_whoever_is_blamed(self, fp8bench, tmp_path, monkeypatch):
        monkeypatch.setattr(batch_size, "room_bytes", lambda *_asked: 2**40)
        fp8bench(Machine(), *self.RUN, "--mode", "baseline-bf16")
        [record] = kept(tmp_path)

        assert record["config"]["batch_size"] <= 1000
        assert {(one["fit"], one["batch_size"] > 1000) for one in record["session"]["batch_search"]["tries"]} == {
            ("fits", False),
            ("too large", True),
        }

    def test_another_failure_ends_the_search_which_a_resumed_session_makes_again_and_a_dry_run_says_that_it_will(
        self, fp8bench, tmp_path
    ):
        said = fp8bench(Machine(), *self.RUN, "--dry-run").stdout
        assert "batch size: each mode's is found first, in a few more starts" in said
        fp8bench(Machine(broken=("baseline-bf16",)), *self.RUN, "--session", "mine", code=5)
        found = {r["config"]["mode"]: (r["status"], r["reason"]) for r in kept(tmp_path)}
        assert found == {"baseline-bf16": ("failed", "it broke"), "torchao-float8": ("ok", None)}
        machine = Machine()
        fp8bench(machine, "run", "--gpus", "1", "--session", "mine")
        assert [(label, steps) for label, _, steps in machine.ran] == [("baseline-bf16", 3)] * 4 + [
            ("baseline-bf16", 20)
        ]
        assert machine.ran[-1][1] == 832


@pytest.mark.thorough
@pytest.mark.slow
def test_a_real_group_of_two_finds_the_size_beyond_which_one_rank_has_no_memory(tmp_path, outside_site):
    done = call(
        tmp_path,
        *("run", "--mode", "outside-polite", "--workload", "outside-narrow", "--batch-size", "auto"),
        *("--gpus", "2", "--rounds", "1", *QUICK, "--json"),
        PYTHONPATH=str(outside_site),
    )
    [record] = json.loads(done.stdout)
    tries = record["session"]["batch_search"]["tries"]

    assert (done.code, record["config"]["batch_size"]) == (0, 32), done.stderr
    assert {one["fit"] for one in tries if one["batch_size"] > 32} == {"too large"}
    assert all(one["peak_bytes"] > 2**20 for one in tries if one["fit"] == "fits")
