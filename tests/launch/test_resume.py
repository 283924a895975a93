"""A session goes on with its own settings, on its own machine and software, or not at all; each variant of one has a
configuration and a label of its own.
"""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from builders import config, environment, instance, machine_called, measured, place, unsupported
from launch.test_plan import LARGE, SMALL, SOUGHT, of_variants, requested

from fp8bench.config.request import RunRequest, resolve
from fp8bench.launch import place as placing
from fp8bench.launch import prepare as preparing
from fp8bench.launch import session as launching
from fp8bench.launch.place import Place
from fp8bench.launch.plan import plan
from fp8bench.launch.prepare import Kept, find_session, prepare, refuse_unlike, settings_of, sizes_found
from fp8bench.machine.gpus import Machine
from fp8bench.machine.identity import Here
from fp8bench.records import instances, results
from fp8bench.schema.config import BatchSearch, RunConfig
from fp8bench.schema.errors import UsageError
from fp8bench.schema.machine import RELEASE
from fp8bench.schema.record import METHOD_VERSION, Record, RequestedMode

BOX = machine_called("vendor-a")
OTHER_BOX = machine_called("vendor-b")
SOFTWARE = {"torch": "2.11.0", "python": "3.12", RELEASE: "0.1.0"}
HERE = Here(BOX, SOFTWARE)
COMMIT, OTHER_COMMIT = "3f9a1c0d5e" + "0" * 30, "8b2e7f4a11" + "0" * 30
CPU = Machine(gpus=(), product_name=None, cpu_count=2)
OF_ALL = {
    "workload": "vit-micro",
    "device": "cpu",
    "world_size": 3,
    "batch_size": 4,
    "warmup": 1,
    "steps": 6,
    "compile": "off",
    "data": "device",
    "workers": 0,
    "seed": 5,
    "te_attention": "sdpa",
}


def kept(number: int = 1, name: str = "nightly", mode: str = "baseline-bf16", **changes) -> Record:
    settings = {**OF_ALL, **changes.pop("settings", {})}
    where = changes.pop("session", place(number, name))
    values = {"machine": BOX, "environment": environment(None), "minutes": number, **changes}
    key = values.pop("instance", "cpu")
    return measured(key, mode, settings=settings, session=where, run_id=f"{name}-{number}-{mode}", **values)


@pytest.fixture(autouse=True)
def no_checkout(monkeypatch):
    monkeypatch.setattr(preparing, "git_state", lambda: (None, None))


@pytest.fixture
def here(monkeypatch):
    """This machine is the box, a CPU."""
    monkeypatch.setattr(preparing, "this_machine", lambda _environ: CPU)
    monkeypatch.setattr(placing, "this_machines_identity", lambda label: BOX.model_copy(update={"label": label}))
    monkeypatch.setattr(placing, "software_here", lambda on_gpu: SOFTWARE)


def prepared(tmp_path, *records: Record, **asked):
    for record in records:
        results.write(record, tmp_path)
    return prepare(RunRequest(results_dir=tmp_path, **{"session": "latest", **asked}), {})


def find(name: str, records: list[Record], here: Here = HERE) -> Kept:
    where = Place(instance=instance("cpu"), results_dir=Path("kept"), here=here)
    return find_session(name, where, records)


class TestFind:
    @pytest.mark.parametrize(
        ("name", "records", "expected"),
        [
            ("latest", [kept(1, "a"), kept(3, "b"), kept(2, "a")], ("b", [3])),
            # What another machine measured is not ours, later or under the same name.
            ("latest", [kept(1, "ours"), kept(2, "theirs", machine=OTHER_BOX)], ("ours", [1])),
            ("nightly", [kept(1), kept(2, machine=OTHER_BOX), kept(3)], ("nightly", [1, 3])),
            # A name that nothing has begins a session.
            ("new", [kept(1)], ("new", [])),
        ],
    )
    def test_a_session_is_found_by_its_name_or_is_that_of_the_latest_record(self, name, records, expected):
        found = find(name, records)

        assert (found.session_id, [record.session.round for record in found.records]) == expected

    @pytest.mark.parametrize("name", ["nightly", "latest"])
    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"machine": OTHER_BOX}, rf"machine vendor-b \({OTHER_BOX.id}\) \(here vendor-a \({BOX.id}\)\)"),
            ({"machine": None}, r"machine unknown \(here vendor-a"),
            ({"environment": environment(None, versions={"torch": "2.10.0"})}, r"torch 2\.10\.0 \(here 2\.11\.0\)"),
            ({"environment": environment(None, python="3.13.1")}, r"python 3\.13 \(here 3\.12\)"),
            ({"environment": environment(None, fp8bench="9.9.9")}, r"fp8bench 9\.9\.9 \(here 0\.1\.0\)"),
            ({"environment": environment(None, variables={"NCCL_ALGO": "Ring"})}, r"NCCL_ALGO Ring \(here absent\)"),
            ({"method_version": METHOD_VERSION - 1}, rf"method version {METHOD_VERSION - 1} \(now {METHOD_VERSION}\)"),
        ],
        ids=["machine", "unknown machine", "torch", "python", "release", "variable", "method"],
    )
    def test_one_that_was_measured_elsewhere_is_refused_with_the_reason(self, name, change, why):
        with pytest.raises(UsageError, match=why) as refusal:
            find(name, [kept(1, **change)])

        assert "session 'nightly' cannot be resumed here" in refusal.value.what
        assert "--session" in refusal.value.remedy

    def test_nor_is_one_resumed_under_a_new_variable_by_another_commit_or_after_changes_nor_none(self, monkeypatch):
        records = [kept(1, environment=environment(None, git_commit=COMMIT, git_dirty=False))]
        assert find("nightly", records).records == records
        monkeypatch.setattr(preparing, "git_state", lambda: (COMMIT, False))
        assert find("nightly", records).records == records
        for commit in ((OTHER_COMMIT, False), (COMMIT, True)):
            monkeypatch.setattr(preparing, "git_state", lambda commit=commit: commit)
            with pytest.raises(UsageError, match="fp8bench at commit 3f9a1c0d5e"):
                find("nightly", records)
        with pytest.raises(UsageError, match=r"OMP_NUM_THREADS absent \(here 1\)"):
            find("nightly", records, Here(BOX, {**SOFTWARE, "OMP_NUM_THREADS": "1"}))
        with pytest.raises(UsageError, match=r"no session of 'cpu' is kept in kept, so none can be resumed"):
            find("latest", [])


def settings(*records: Record, elastic: bool = False, **asked) -> dict:
    return settings_of(find("nightly", records), RunRequest(**asked), elastic)


class TestSettings:
    def test_what_was_not_given_is_the_sessions_and_what_was_given_is_left_alone(self):
        found = settings(kept(1), kept(1, mode="te-bf16"))

        expected = {name: value for name, value in OF_ALL.items() if name not in ("device", "world_size")}
        assert {name: found[name] for name in expected} == expected
        assert (found["gpus"], found["mode"]) == (3, ("baseline-bf16", "te-bf16"))
        assert "aa" not in found
        assert not {"steps", "mode"} & set(settings(kept(1), steps=9, mode=("te-bf16",)))
        assert "gpus" not in settings(kept(1), elastic=True)

    def test_modes_that_were_requested_and_have_no_record_yet_are_the_sessions_too(self):
        wanted = (
            RequestedMode(mode="baseline-bf16"),
            RequestedMode(mode="te-fp8", recipe="delayed"),
            RequestedMode(mode="te-fp8", recipe="delayed", te_switches="fused-qkv"),
        )
        first, second = (
            place(number, "nightly").model_copy(update={"modes": of}) for number, of in ((1, wanted), (2, wanted[:1]))
        )
        found = settings(kept(1, session=first), kept(2, mode="te-bf16", session=second))

        assert found["mode"] == ("baseline-bf16", "te-fp8:delayed", "te-bf16")
        assert found["te_switch"] == ("none", "fused-qkv")

    def test_how_far_it_was_to_go_and_its_arms_are_taken_over_and_may_be_said_anew(self):
        asked = {"rounds": 5, "precision": 0.01, "max_rounds": 9}
        record = kept(1, session=place(1, "nightly", arm="A").model_copy(update=asked))

        assert {**asked, "aa": True}.items() <= settings(record).items()
        assert "rounds" not in settings(record, rounds=7)

    def test_a_session_with_two_settings_asks_which(self):
        records = kept(1), kept(2, settings={"batch_size": 8})

        with pytest.raises(UsageError, match=r"no batch_size of its own: its records have 4 and 8. .*--batch-size"):
            settings(*records)
        assert "batch_size" not in settings(*records, batch_size=8)

    @pytest.mark.parametrize(
        ("now", "aa", "told"),
        [
            (
                config(**{**OF_ALL, "batch_size": 8, "world_size": 2, "seed": 0}),
                False,
                r"session 'nightly' was measured with gpus 3 \(now 2\), batch_size 4 \(now 8\), seed 5 \(now 0\)\. "
                "Omit --gpus, --batch-size, --seed to resume it",
            ),
            (config(**OF_ALL), True, r"aa false \(now true\)"),
            # Another mode of the same settings may join, with layers of its own.
            (config("te-fp8", "current,layers=auto", **OF_ALL, fp8_layer_names=("mlp",)), False, None),
        ],
    )
    def test_everything_that_differs_is_named_with_both_values(self, now, aa, told):
        with nullcontext() if told is None else pytest.raises(UsageError, match=told):
            refuse_unlike(find("nightly", [kept(1)]), RunRequest(aa=aa), [now])


class TestInstance:
    """Without --instance a session is looked for under every instance that this machine can be."""

    @pytest.fixture
    def known(self, here, tmp_path):
        """An instance of one's own that this machine can be, and another."""

        def keeping(key, gpu_count=0):
            own = instance(key, gpu="B200" if gpu_count else None, gpu_count=gpu_count)
            instances.keep(own, None, in_catalog=False, results_dir=tmp_path)

        return keeping

    @pytest.mark.parametrize("name", ["nightly", "latest"])
    def test_it_brings_its_instance_and_settings_along(self, name, known, tmp_path):
        known("my-box")
        found = prepared(tmp_path, kept(1, instance="my-box"), session=name, rounds=2)

        assert (found.instance.key, found.request.session) == ("my-box", "nightly")
        assert (found.resumed["instance"], found.resumed["batch_size"]) == ("my-box", 4)
        assert launching.schedule(found).first_round == 2

    def test_found_under_several_it_is_refused_with_their_names_and_the_latest_is_that_of_all(self, known, tmp_path):
        known("my-box")
        with pytest.raises(UsageError, match=r"under cpu and my-box. Say which with --instance, as in --instance cpu"):
            prepared(tmp_path, kept(1), kept(2, instance="my-box"), session="nightly")

        assert prepared(tmp_path, session="nightly", instance="my-box").instance.key == "my-box"
        found = prepared(tmp_path, kept(3, "old", instance="my-box"), kept(4, "new"))
        assert (found.instance.key, found.request.session) == ("cpu", "new")

    def test_what_this_machine_is_not_or_did_not_measure_is_no_session_of_it(self, known, tmp_path):
        known("elsewhere")
        known("gpus", gpu_count=8)
        records = kept(1, instance="elsewhere", machine=OTHER_BOX), kept(2, instance="gpus")
        found = prepared(tmp_path, *records, session="nightly", mode=("baseline-bf16",))

        assert (found.instance.key, found.resumed) == ("cpu", {})

    def test_one_of_other_software_is_refused_and_not_begun_anew_unless_another_instance_is_named(
        self, known, tmp_path
    ):
        known("my-box")
        old = kept(1, instance="my-box", environment=environment(None, versions={"torch": "2.10.0"}))

        with pytest.raises(UsageError, match=r"measured with another torch 2\.10\.0"):
            prepared(tmp_path, old, session="nightly")
        found = prepared(tmp_path, session="nightly", instance="auto", rounds=2)
        assert (found.instance.key, found.resumed) == ("cpu", {})


class TestPrepare:
    def test_what_another_call_added_before_the_lock_is_looked_at_again(self, here, tmp_path):
        found = prepared(tmp_path, session="new", mode=("baseline-bf16",))
        results.write(kept(1, "new"), tmp_path)

        with pytest.raises(UsageError, match=r"session 'new' was measured with gpus 3 \(now 2\)"):
            launching.schedule(found)

    def test_what_stopped_has_settings_too(self, here, tmp_path):
        own = {"settings": OF_ALL, "session": place(1, "nightly"), "machine": BOX, "environment": None}
        stopped = unsupported("cpu", "te-fp8", "delayed", **own)
        assert prepared(tmp_path, stopped).entries[0].config == stopped.config


class TestAlone:
    def test_a_second_call_on_the_session_is_refused_with_the_first_ones_process(self, here, tmp_path):
        found = prepared(tmp_path, kept(1), rounds=2)
        nameless = replace(found, request=found.request.model_copy(update={"session": None}))
        with (
            launching.session(found, print),
            # Another session does not wait for it.
            launching.session(nameless, print) as other,
            pytest.raises(UsageError, match=r"session 'nightly' is in use by process \d+"),
            launching.session(found, print),
        ):
            pass

        assert other.session_id != "nightly"
        with launching.session(found, print) as rounds:
            assert rounds.session_id == "nightly"
        assert list(tmp_path.rglob("*.lock")) == []

    def test_a_round_that_cannot_be_read_is_told_and_run_again(self, here, tmp_path):
        found = prepared(tmp_path, kept(1), kept(2), rounds=2)
        path = next(tmp_path.rglob("nightly-2-*.samples.json"))
        path.write_text(path.read_text().replace('"step_s": [0.1', '"step_s": [0.0', 1))
        said = []
        with launching.session(found, said.append) as rounds:
            assert rounds.first_round == 2

        (line,) = said
        assert line.startswith("warning: left out: ")
        assert path.name in line


SEARCH = BatchSearch(memory_bytes=None, headroom=0.08, tries=())
WITH_FP32 = (SMALL, LARGE, {"mode": "baseline-fp32", "batch_size": 4, "compile": "on"})


def of_sizes(*configs: RunConfig, variants=WITH_FP32, search: BatchSearch | None = None) -> Kept:
    """A session of variants, of which these have a record."""
    where = place(1, "monday").model_copy(update={"variants": variants, "batch_search": search, "rounds": 2})
    return Kept("monday", [measured("cpu", one.mode, session=where, config=one) for one in configs])


def sized(one: RunConfig, batch_size: int) -> RunConfig:
    return one.model_copy(update={"batch_size": batch_size})


class TestVariants:
    def test_their_order_may_change_and_a_session_without_any_takes_none(self):
        first = of_variants(*WITH_FP32)[0].config
        refuse_unlike(of_sizes(first), RunRequest(variants=WITH_FP32[::-1]), [first])

        now = plan(requested(*WITH_FP32), CPU)
        with pytest.raises(UsageError, match="session 'monday' was measured without variants"):
            refuse_unlike(of_sizes(first, variants=()), RunRequest(variants=WITH_FP32), now)

    def test_what_changed_beside_them_is_named_even_where_another_variant_has_that_value(self):
        variants = ({"mode": "te-bf16", "compile": "off"}, {"mode": "te-fp8:delayed", "compile": "on"})
        before = [config("te-bf16", compile="off", seed=1), config("te-fp8", "delayed", compile="on", seed=1)]
        now = [one.model_copy(update={"seed": 2}) for one in before]

        with pytest.raises(UsageError, match=r"session 'monday' was measured with seed 1 \(now 2\)") as refusal:
            refuse_unlike(of_sizes(*before, variants=variants), RunRequest(variants=variants), now)
        assert refusal.value.remedy.startswith("Omit --seed, or restore the file, to resume it with its own settings")

    def test_a_flag_that_would_override_what_they_have_is_refused(self):
        asked = resolve({"batch_size": "9", "mode": ("te-fp8",), "steps": "5"}, {}, {}, None).request

        with pytest.raises(UsageError, match=r"settings of their own, not those of --batch-size, --mode"):
            settings_of(of_sizes(of_variants(*WITH_FP32)[0].config), asked, elastic=False)

    def test_each_has_the_size_that_was_found_for_it_beside_one_that_was_given(self):
        variants = (SOUGHT, {**SOUGHT, "compile": "on"})
        configs = [one.config for one in of_variants(*variants)]
        found = sized(configs[0], 96)
        session = of_sizes(found, variants=variants, search=SEARCH)

        assert sizes_found(session, configs, configs) == ([found, configs[1]], {found: SEARCH})
        refuse_unlike(session, RunRequest(variants=variants), [found, configs[1]])
        given, sought = (one.config for one in of_variants(SMALL, SOUGHT))
        beside, _ = sizes_found(of_sizes(sized(sought, 96), search=SEARCH), [given, sought], [sought])
        assert [one.batch_size for one in beside] == [4, 96]

    def test_a_size_that_was_found_to_be_the_first_one_tried_is_not_searched_again(self, here, tmp_path, monkeypatch):
        [entry] = of_variants(SOUGHT)
        monkeypatch.setattr(
            preparing, "find_session", lambda *_given: of_sizes(entry.config, variants=(SOUGHT,), search=SEARCH)
        )
        asked = requested(SOUGHT).model_copy(update={"session": "monday", "results_dir": tmp_path})
        found = prepare(asked, {})

        assert (found.to_size, found.searches) == ((), {entry.config: SEARCH})

    def test_settings_that_changed_are_refused_where_every_size_was_searched_for(self):
        before, now = (of_variants(SOUGHT, steps=steps)[0].config for steps in (7, 8))
        session = of_sizes(before, variants=(SOUGHT,), search=SEARCH)
        unlike, _ = sizes_found(session, [now], [now])

        assert unlike == [now]
        with pytest.raises(UsageError, match=r"measured with steps 7 \(now 8\)"):
            refuse_unlike(session, RunRequest(variants=(SOUGHT,)), unlike)
