"""A model looked at before its first worker starts: what is told, and that a look which broke is no answer."""

import sys

import pytest
from builders import config

from fp8bench.launch.prepare import examined, require_modes
from fp8bench.schema.errors import ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.model import Answer, Refusal

OF_TIMM = config(workload="timm:convnext_tiny", device="cpu", world_size=1)
NO = Refusal(what="it has no linear layer", remedy="Use another")


def saying(text, code=0):
    return (sys.executable, "-ISs", "-c", f"import sys; sys.stdin.read(); print({text!r}); sys.exit({code})")


def test_a_workload_whose_name_says_what_it_is_is_not_looked_at():
    assert examined([config(workload="vit-micro")], ("/no/such/program",)) is None


@pytest.mark.slow
def test_other_sizes_are_looked_at_and_wrong_ones_are_wrong_usage():
    sized = config(workload="vit-micro,depth=1")
    assert examined([sized], saying(Answer().model_dump_json())) == Answer()
    refusal = Refusal(what="unknown size", remedy="Name another", exit_code=2)
    with pytest.raises(UsageError, match="unknown size"):
        examined([sized], saying(Answer(refusal=refusal).model_dump_json()))


@pytest.mark.parametrize(
    ("modes", "named", "refused"),
    [((None, NO), True, True), ((None, NO), False, False), ((NO, NO), False, True), ((None, None), True, False)],
)
def test_a_named_mode_that_cannot_is_an_error_and_a_default_one_where_none_can(modes, named, refused):
    answer = Answer(modes=modes)
    if not refused:
        require_modes(answer, named)
        return
    with pytest.raises(ModeUnavailable, match=r"it has no linear layer\. Use another"):
        require_modes(answer, named)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code", "error", "why"),
    [
        ("", 3, RunFailed, "timm:convnext_tiny could not be looked at: exit code 3"),
        ("{", 0, RunFailed, "timm:convnext_tiny could not be looked at: its answer cannot be read"),
        (Answer(refusal=NO).model_dump_json(), 0, ModeUnavailable, "it has no linear layer"),
    ],
)
def test_a_look_that_broke_is_no_answer_and_a_refusal_is_an_error_here_too(text, code, error, why):
    assert examined([OF_TIMM], saying(Answer(modes=(NO,)).model_dump_json())) == Answer(modes=(NO,))
    with pytest.raises(error, match=why):
        examined([OF_TIMM], saying(text, code))
