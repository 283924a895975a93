"""The words for how a step is executed, and how they are written and read."""

import pytest

from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import VARIANTS, is_compiled, is_replayed, split_variant, suffix, variant_of, variants_of


def test_every_variant_is_made_of_what_it_says():
    made = {variant_of(scope, graphed): (scope, graphed) for scope in (None, "model", "blocks") for graphed in (0, 1)}
    assert set(made) == set(VARIANTS)
    assert all((is_compiled(v), is_replayed(v)) == (made[v][0] is not None, bool(made[v][1])) for v in VARIANTS)


@pytest.mark.parametrize("variant", [*VARIANTS, None])
def test_what_is_written_after_a_mode_is_read_again(variant):
    assert split_variant(f"te-fp8:delayed{suffix(variant)}", "it") == ("te-fp8:delayed", variant)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("graphd", "Did you mean 'graphed'?"),
        ("compile", "Did you mean 'compiled'?"),
        ("graphed+compiled", "Did you mean 'compiled+graphed'?"),
        ("Graphed", "Did you mean 'graphed'?"),
        ("xyz", "Variants are eager"),
    ],
)
def test_a_word_that_is_no_variant_is_refused(word, meant):
    with pytest.raises(UsageError) as refusal:
        split_variant(f"te-fp8/{word}", "'it'")
    assert refusal.value.what == f"'it': unknown variant {word!r}"
    assert refusal.value.remedy.startswith(meant)
    assert refusal.value.remedy.endswith(f"Variants are {', '.join(VARIANTS)}")


@pytest.mark.parametrize(
    ("asked", "on_gpu", "variants"),
    [
        (("off", "off"), True, {"eager"}),
        (("on", "on"), True, {"compiled+graphed"}),
        (("blocks", "auto"), True, {"blocks", "blocks+graphed"}),
        (("blocks", "auto"), False, {"blocks"}),
        (("off", "on"), False, {"graphed"}),
        (("auto", "auto"), True, set(VARIANTS)),
        (("auto", "auto"), False, {"eager", "compiled", "blocks"}),
    ],
)
def test_what_settings_may_turn_out_to_be(asked, on_gpu, variants):
    assert set(variants_of(*asked, on_gpu=on_gpu)) == variants
