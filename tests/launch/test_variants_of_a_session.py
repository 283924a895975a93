"""Variants of one session: each a configuration and a label of its own, resumed exactly or not at all."""

from dataclasses import replace

import pytest
from builders import config, environment, machine_called, measured

from fp8bench.config.request import RunRequest
from fp8bench.config.sources import resolve
from fp8bench.launch import prepare as preparing
from fp8bench.launch import resume
from fp8bench.launch.plan import apart, entries, plan, variant_notes
from fp8bench.launch.rounds import Entry
from fp8bench.machine.gpus import Machine
from fp8bench.schema.batch import BatchSearch
from fp8bench.schema.errors import UsageError
from fp8bench.schema.record import Record, Session

CPU = Machine(gpus=(), product_name=None, cpu_count=2)
SMALL = {"mode": "baseline-bf16", "batch_size": 4, "compile": "off"}
LARGE = {"mode": "baseline-bf16", "batch_size": 8, "compile": "off"}
OTHER = {"mode": "baseline-fp32", "batch_size": 4, "compile": "on"}
THREE = (SMALL, LARGE, OTHER)
SEARCH = BatchSearch(memory_bytes=None, headroom=0.08, tries=())


def request(*variants: dict, **settings) -> RunRequest:
    return resolve({"workload": "vit-micro", **settings}, {}, {"variants": [*(variants or THREE)]}, "a.yaml").request


def planned(*variants: dict, **settings) -> list[Entry]:
    asked = request(*variants, **settings)
    return entries(asked, plan(asked, CPU))


def kept(entry: Entry, number: int = 1, variants=THREE, search: BatchSearch | None = None, **changes) -> Record:
    place = Session(session_id="monday", round=number, position=1, variants=variants, batch_search=search, rounds=2)
    return measured(
        "cpu",
        entry.config.mode,
        session=place,
        config=entry.config,
        machine=machine_called("box"),
        environment=environment(None),
        minutes=number,
        **changes,
    )


def session_of(*records: Record) -> resume.Kept:
    return resume.Kept("monday", records)


class TestPlan:
    def test_what_is_left_to_the_machine_is_called_that(self):
        assert variant_notes(({**SMALL, "batch_size": None}, LARGE)) == ["batch by default", "batch 8"]

    def test_two_that_are_the_same_on_this_machine_are_refused(self):
        with pytest.raises(UsageError, match=r"variants 1 and 2 are the same here: baseline-bf16 at batch size 16"):
            planned({**SMALL, "batch_size": 16}, {**SMALL, "batch_size": None})

    def test_a_size_to_be_found_begins_at_none_that_another_variant_has(self):
        variants = ({**SMALL, "batch_size": "auto"}, {**SMALL, "batch_size": 16}, {**LARGE, "batch_size": 32})
        configs = [config("baseline-bf16", batch_size=size) for size in (16, 16, 32)]

        assert [one.batch_size for one in apart(configs, variants)] == [64, 16, 32]

    def test_a_size_that_was_found_and_is_another_variants_is_measured_once(self):
        asked = request({**SMALL, "batch_size": "auto"}, {**SMALL, "batch_size": 16})
        same = [config("baseline-bf16", batch_size=16)] * 2

        assert len(entries(asked, same)) == 1


class TestResume:
    def test_the_order_of_variants_may_change(self):
        entry = planned()[0]
        resume.refuse_unlike(session_of(kept(entry)), [entry.config], False, THREE[::-1])

    def test_what_changed_beside_the_variants_is_named_even_where_another_variant_has_that_value(self):
        variants = ({"mode": "te-bf16", "compile": "off"}, {"mode": "te-fp8:delayed", "compile": "on"})
        before = [config("te-bf16", compile="off", seed=1), config("te-fp8", "delayed", compile="on", seed=1)]
        session = session_of(*(kept(Entry(one), variants=variants) for one in before))
        now = [one.model_copy(update={"seed": 2}) for one in before]

        with pytest.raises(UsageError, match=r"session 'monday' was measured with seed 1 \(now 2\)") as refusal:
            resume.refuse_unlike(session, now, False, variants)
        assert refusal.value.remedy.startswith("Omit --seed, or restore the file, to resume it with its own settings")

    def test_a_flag_that_would_override_what_variants_have_is_refused(self):
        asked = resolve({"batch_size": "9", "mode": ("te-fp8",), "steps": "5"}, {}, {}, None).request

        with pytest.raises(UsageError, match=r"which --batch-size, --mode would override"):
            resume.settings_of(session_of(kept(planned()[0])), asked, elastic=False)

    def test_a_session_without_variants_takes_none(self):
        session = session_of(kept(planned()[0], variants=()))

        with pytest.raises(UsageError, match="session 'monday' was measured without variants"):
            resume.refuse_unlike(session, plan(request(), CPU), False, THREE)

    def test_each_variant_has_the_size_that_was_found_for_it(self):
        variants = [{**one, "batch_size": "auto"} for one in (SMALL, {**SMALL, "compile": "on"})]
        first, second = planned(*variants)
        found = replace(first, config=first.config.model_copy(update={"batch_size": 96}))
        session = session_of(kept(found, variants=tuple(variants), search=SEARCH))
        configs = [first.config, second.config]
        sized, searches = resume.sized(session, configs, configs)

        assert sized == [found.config, second.config]
        assert searches == {found.config: SEARCH}
        resume.refuse_unlike(session, [found.config], False, tuple(variants), [second.config])

    def test_a_size_that_was_given_stays_beside_one_that_was_found(self):
        given, open_ = planned(SMALL, {**SMALL, "batch_size": "auto"})
        session = session_of(kept(Entry(open_.config.model_copy(update={"batch_size": 96})), search=SEARCH))

        sized, _ = resume.sized(session, [given.config, open_.config], [open_.config])
        assert [one.batch_size for one in sized] == [4, 96]

    def test_a_size_that_was_found_to_be_the_first_one_tried_is_not_searched_again(self, tmp_path, monkeypatch):
        variants = ({**SMALL, "batch_size": "auto"},)
        asked = request(*variants)
        (entry,) = planned(*variants)
        session = session_of(kept(entry, variants=variants, search=SEARCH))
        monkeypatch.setattr(resume, "find", lambda *_given: session)
        monkeypatch.setattr(preparing, "this_machine", lambda _environ: CPU)
        same = asked.model_copy(update={"session": "monday", "results_dir": tmp_path})
        prepared = preparing.prepare(same, {})

        assert prepared.to_size == ()
        assert prepared.searches == {entry.config: SEARCH}

    def test_settings_that_changed_are_refused_where_every_size_was_searched_for(self):
        variants = ({**SMALL, "batch_size": "auto"},)
        (entry,) = planned(*variants, steps=7)
        session = session_of(kept(entry, variants=variants, search=SEARCH))
        (now,) = planned(*variants, steps=8)
        sized, _ = resume.sized(session, [now.config], [now.config])

        assert sized == [now.config]
        with pytest.raises(UsageError, match=r"measured with steps 7 \(now 8\)"):
            resume.refuse_unlike(session, [], False, variants, sized)
