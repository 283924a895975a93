"""A record that relies on the parity of another is left out without that one."""

from pathlib import Path

import pytest
from builders import parity, rounds

from fp8bench.records import results
from fp8bench.records.audit import verify
from fp8bench.schema.record import Record

OWN = parity(loss_size=2.5, depends_on="digest")


@pytest.fixture
def session(tmp_path):
    """Three processes of a session, in the folder where they are kept; two rely on the first."""
    first, *later = (one.model_copy(update={"parity": OWN}) for one in rounds(0.1, 0.1, 0.1, instance="mine"))
    relied = OWN.model_copy(update={"of_run": first.run_id})
    return tmp_path, [first, *(one.model_copy(update={"parity": relied}) for one in later)]


def believed(folder, records):
    """Which of the records are believed, and what is said of the others."""
    for record in records:
        results.write(record, folder)
    told = []
    found = results.sound(results.read(folder, ["mine"]), told.extend, lambda left: left)
    return [records.index(one) for one in records if one.run_id in {each.run_id for each in found}], told


def test_all_are_believed_together(session):
    assert believed(*session) == ([0, 1, 2], [])
    assert verify(session[0], {"run": Record}) == (3, ())


def changed(record, **changes):
    return record.model_copy(update=changes)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda first: None,
        lambda first: changed(first, parity=changed(OWN, depends_on="another")),
        lambda first: changed(first, parity=changed(OWN, of_run="another")),
        lambda first: changed(first, status="invalid", reason="it is so", remedy="Look", summary=None),
        # It contradicts itself.
        lambda first: changed(first, parity=changed(OWN, logits_error=0.9)),
    ],
    ids=["missing", "of other code", "relies itself", "invalid", "contradicts itself"],
)
def test_none_is_believed_without_the_first(session, spoil):
    folder, [first, *later] = session
    spoilt = spoil(first)
    kept = [record for record in (spoilt, *later) if record is not None]
    found, told = believed(folder, kept)

    assert not {kept.index(one) for one in later} & {*found}
    bad = {Path(one.path).stem for one in verify(folder, {"run": Record}).bad}
    assert bad >= {one.run_id for one in later}, "verify says the same"
    said = [one for one in told if "relies on the parity of" in one.reason]
    assert {Path(one.path).stem for one in said} >= {one.run_id for one in later}
    assert all(first.run_id in one.reason for one in said if Path(one.path).stem != first.run_id)
