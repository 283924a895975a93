"""What a rank may say, and how it may be wrong about itself: one line, and the documented exit code."""

import fcntl
import json
import os
import resource
import tempfile
import threading
from pathlib import Path

import pytest
from builders import config
from faults.faulty_runs import LIMIT_S, WORDS
from kept import documents
from launch.seen import fresh

from fp8bench.launch.processes.blame import in_general
from fp8bench.launch.processes.rank import TRACEBACK_CHARACTERS, Inbox, Teller, rank_error
from fp8bench.machine.temporary import DOCTOR, LEFT_S, PREFIXES, RANKS, folder, sweep
from fp8bench.schema.errors import LONGEST, RunFailed, in_words


@pytest.fixture
def ends():
    """A rank's end and its launcher's of one pipe."""
    ours, its = os.pipe()
    inbox, teller = Inbox(ours), Teller(its)
    yield inbox, teller, its
    inbox.close()
    os.close(its)


class TestTelling:
    def test_the_last_report_counts_and_the_first_error(self, ends):
        inbox, teller, _ = ends
        for what, text in [("kept", "1"), ("kept", "2"), ("error", "cause"), ("report", "ä\n"), ("error", "effect")]:
            teller.say(what, text)
        inbox.read()

        assert inbox.said == {"kept": "2", "error": "cause", "report": "ä\n"}

    @pytest.mark.parametrize("part", [b'["report", "half', b'["report", "half"]', b""])
    def test_a_message_that_is_cut_off_is_none(self, ends, part):
        inbox, teller, its = ends
        teller.say("kept", "whole")
        os.write(its, part)
        inbox.read()

        assert inbox.said == {"kept": "whole"}

    def test_megabytes_come_through_a_pipe_that_holds_less(self, ends):
        inbox, teller, _ = ends
        text = "x" * 5_000_000
        saying = threading.Thread(target=teller.say, args=("report", text))
        saying.start()
        while "report" not in inbox.said:
            inbox.read()
        saying.join()

        assert inbox.said["report"] == text

    def test_needs_no_file(self, ends):
        """Where no file may grow, as where a disk is full."""

        inbox, teller, _ = ends
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            teller.say("report", "it is done")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        inbox.read()

        assert inbox.said == {"report": "it is done"}


class TestErrors:
    @pytest.mark.parametrize(
        ("message", "said"),
        [
            ("half \ud800 a letter", r"ValueError: half \ud800 a letter"),
            ("\x1b[31mred\x1b]0;title\x07", r"ValueError: \x1b[31mred\x1b]0;title\x07"),
            ("\n\n second line\nthird", "ValueError: second line"),
            ("", "ValueError"),
        ],
    )
    def test_any_message_is_a_line_that_can_be_told(self, message, said):
        error = rank_error(ValueError(message))

        assert error.what == said
        assert json.loads(error.model_dump_json())["what"] == said

    def test_megabytes_are_cut_to_what_is_read(self):
        error = rank_error(RunFailed("x" * 3_000_000, "y" * 3_000_000))

        assert (len(error.what), len(error.remedy)) == (LONGEST, LONGEST)
        assert len(error.traceback) < TRACEBACK_CHARACTERS + 100
        assert in_words("short") == "short"

    def test_an_error_whose_message_cannot_be_made_is_told_all_the_same(self):
        class Silent(Exception):
            def __str__(self):
                raise RuntimeError("no words")

        assert rank_error(Silent()).what == "Silent: <exception str() failed>"


class TestSweep:
    @pytest.mark.parametrize("prefix", PREFIXES)
    def test_what_killed_processes_left_is_removed_and_what_is_in_use_or_others_stays(self, prefix, tmp_path):
        names = {name: tmp_path / name for name in (f"{prefix}left", f"{prefix}used", f"{prefix}new", "fp8bench-other")}
        for each in names.values():
            each.mkdir()
            (each / "task.json").touch()
            os.utime(each, (0, 0))
        os.utime(names[f"{prefix}new"])
        held = os.open(names[f"{prefix}used"], os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        sweep(tmp_path)
        os.close(held)

        assert LEFT_S >= 1
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(set(names) - {f"{prefix}left"})

    def test_a_folder_is_in_use_while_it_is_open_and_the_next_one_removes_what_was_left(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        left = tmp_path / f"{RANKS}left"
        left.mkdir()
        os.utime(left, (0, 0))
        with folder(DOCTOR) as path:
            os.utime(path, (0, 0))
            sweep(tmp_path)
            assert list(tmp_path.iterdir()) == [path]

        assert list(tmp_path.iterdir()) == []


def line_of(method):
    lines = (Path(__file__).parent / "faulty_plugins.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.startswith(f"    def {method}("))


@pytest.mark.slow
@pytest.mark.faults
class TestRemedies:
    @pytest.mark.parametrize("kind", ["raises", "exits", "segfaults"])
    def test_nothing_about_one_gpu_or_a_group_is_advised_on_a_cpu(self, run, kind):
        assert "--gpus" not in run(f"{kind} timing 1").record["remedy"]

    def test_where_several_gpus_ran_it_is(self):
        assert "--gpus 1" in in_general(config(device="cuda", world_size=2))
        assert "--gpus" not in in_general(config(device="cuda", world_size=1))

    def test_a_crash_under_a_variable_that_makes_torch_crash_names_it(self, run):
        done = run("segfaults proving 1", TORCH_DISTRIBUTED_DEBUG="DETAIL")

        assert "ended by SIGSEGV" in done.record["reason"]
        assert done.record["remedy"].startswith("Unset TORCH_DISTRIBUTED_DEBUG")

    def test_a_limit_on_cpu_time_is_named_and_not_the_hosts_memory(self, tmp_path, variables):
        """Under `ulimit -t`, by which the kernel ends a process with SIGKILL too."""
        limit = (25, 25)
        environ = {**variables, "FAULT": "spins timing 1"}
        running = fresh(tmp_path, environ, *WORDS, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limit))

        assert running.wait(LIMIT_S) == 5
        [record] = documents(tmp_path / "results")
        assert record["reason"].startswith("rank 1 died: ended by SIGKILL")
        assert "ulimit -t" in record["remedy"]
        assert "25 s" in record["remedy"]
        assert "dmesg" not in record["remedy"]


@pytest.mark.slow
@pytest.mark.faults
class TestPlugins:
    @pytest.mark.parametrize("units", ["0", "-4", "2.5", "'many'", "float('nan')", "None"])
    @pytest.mark.parametrize("name", ["units_per_step", "flops_per_step"])
    def test_a_workload_that_cannot_count_is_one_line(self, run, units, name):
        done = run("none none 0", **{name.split("_")[0].upper(): units})

        assert (done.code, done.record["status"]) == (5, "failed")
        assert done.record["reason"] == (
            f"workload 'faulty-linear' says {name}(8) is {eval(units)!r}, no whole number above 0, "
            "in the phase 'starting'"
        )

    @pytest.mark.parametrize(
        ("name", "given", "said"),
        [
            ("CONVERT", "None", "Faulty.convert of 'faulty' returned None, and not a torch.nn.Module, at "),
            ("CONVERT", "'model'", "Faulty.convert of 'faulty' returned 'model', and not a torch.nn.Module, at "),
            ("CONTEXT", "None", "Faulty.forward_context of 'faulty' returned None, and not a context manager, at "),
            ("EVIDENCE", "None", "Faulty.evidence of 'faulty' returned None, and not a dict, at "),
            ("LOSS", "None", "Linear.loss of 'faulty-linear' returned None, and not a scalar tensor, at "),
            ("LOSS", "usual.item()", "Linear.loss of 'faulty-linear' returned "),
            ("LOSS", "usual.expand(2)", "returned a tensor of shape [2], and not a scalar tensor, at "),
            (
                "BATCHES",
                "list(itertools.islice(usual, 2))",
                "Linear.batches of 'faulty-linear' returned a list, and not an iter",
            ),
            ("BATCHES", "iter([(1, 2)])", "batches of 'faulty-linear' gave a tuple at step 0, and not a Batch of two"),
        ],
    )
    def test_a_method_that_returns_something_else_is_named_with_its_file_and_line(self, run, name, given, said):
        done = run("none none 0", "--gpus", "1", **{name: given})
        method = done.record["reason"].split(" of ")[0].partition(".")[2]

        assert (done.code, done.record["status"], done.record["cause"]) == (5, "failed", "crash")
        assert said in done.record["reason"]
        assert done.record["reason"].split(", in the phase")[0].endswith(f"/faulty_plugins.py:{line_of(method)}")

    @pytest.mark.parametrize(
        ("name", "given", "said"),
        [
            ("BATCHES", "itertools.islice(usual, 5)", "ended at step 5"),
            ("BATCHES", "itertools.islice(usual, 0)", "ended at step 0"),
            ("SAMPLES", "usual if step < 5 else 0", "gave an empty batch at step 5"),
        ],
    )
    def test_batches_that_end_or_are_empty_are_named_with_the_step_and_a_remedy(self, run, name, given, said):
        done = run("none none 0", **{name: given})

        assert (done.code, done.record["cause"]) == (5, "crash")
        assert f"Linear.batches of 'faulty-linear' {said}" in done.record["reason"]
        assert "StopIteration" not in done.stderr
        assert any(word in done.record["remedy"] for word in ("without end", "drop_last"))

    def test_a_gate_of_one_sample_is_not_called_a_fault_of_the_mode(self, run):
        done = run("none none 0", SAMPLES="1")

        assert (done.code, done.record["status"]) == (5, "failed")
        assert "1 sample" in done.record["reason"]
        assert "nan" not in done.record["reason"]

    @pytest.mark.parametrize("phase", ["timing", "profiling"])
    def test_terminal_escapes_of_an_error_reach_neither_the_terminal_nor_the_log(self, run, phase):
        done = run(f"escapes {phase} 1")
        [log] = done.folder.glob("results/cpu/*.log")

        assert done.record["reason"].startswith(r"rank 1 died: ValueError: \x1b[31mred\x1b]0;title\x07 \u202eback")
        assert "\x1b" not in done.stderr + done.stdout + log.read_text()

    def test_an_error_of_megabytes_leaves_a_record_and_a_log_of_a_size_to_read(self, run):
        done = run("verbose timing 1")
        sizes = {path.suffix: path.stat().st_size for path in done.folder.glob("results/cpu/*-faulty-*")}

        assert len(done.record["reason"]) < LONGEST + 100
        assert sizes[".log"] < 2 * TRACEBACK_CHARACTERS
        assert len(done.stderr) < 4 * LONGEST

    def test_what_a_rank_prints_stays_out_of_the_results(self, run):
        done = run("prints timing 0", "--json")

        assert (done.code, len(json.loads(done.stdout))) == (0, 1)
        assert "not a result" in done.stderr

    def test_endless_recursion_is_an_error_as_any_other(self, run):
        assert run("recurses timing 1").record["reason"].startswith("rank 1 died: RecursionError: maximum recursion")

    def test_variables_that_are_not_utf_8_spoil_no_record(self, run):
        done = run("none none 0", NCCL_NAME="\udcff\udcfe", TORCH_NAME="\udcff")

        assert (done.code, done.record["status"]) == (0, "ok")

    def test_a_folder_for_temporary_files_with_a_long_name_has_room_for_the_loaders_sockets(self, run, tmp_path):
        long = tmp_path / ("long" * 40)
        long.mkdir()
        done = run("none none 0", "--workload", "vit-micro", "--batch-size", "4", "--workers", "1", TMPDIR=str(long))

        assert (done.code, done.record["status"]) == (0, "ok")
        assert list(long.iterdir()) == []

    def test_a_loader_process_that_is_killed_ends_its_rank_and_is_named(self, run):
        flags = ("--workload", "vit-micro", "--batch-size", "4", "--workers", "1")
        done = run("loader-killed timing 1", *flags)

        assert (done.code, done.record["status"]) == (5, "failed")
        assert "rank 1 died: RuntimeError: DataLoader worker (pid" in done.record["reason"]
        assert done.record["reason"].endswith("in the phase 'timing'")
