"""The grammar of a mode's name: one name for equal recipes, words for how a step is executed, and errors that name what
was meant.
"""

import pytest

from fp8bench import registry
from fp8bench.records.named import parse_reference, written
from fp8bench.schema.errors import UsageError
from fp8bench.schema.execution import VARIANTS, is_compiled, is_replayed, split_variant, suffix, variant_of
from fp8bench.schema.recipe import FIELDS, split_recipe


def recipe(label):
    return registry.find_mode(label)[1]


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("te-fp8:delayed,margin=1,history=16", "delayed,history=16,margin=1"),
        ("te-fp8:history=16", "delayed,history=16"),
        ("te-fp8:delayed,history=1024,margin=0,amax=max,format=hybrid,dpa=off,layers=all", "delayed"),
        ("te-fp8:delayed,format=E4M3,amax=most_recent", "delayed,amax=most_recent,format=e4m3"),
        ("te-fp8:block,format=e4m3", "block"),
        ("te-fp8:block,format=hybrid", "block,format=hybrid"),
        ("te-fp8:current,dpa=on", "current,dpa=on"),
        ("torchao-float8:layers=mlp", "tensorwise,layers=mlp"),
        ("torchao-float8:rowwise,layers=torchao", "rowwise,layers=torchao"),
        (r"torchao-float8:layers=blocks\.\d+\.(?:mlp|attn)", r"tensorwise,layers=blocks\.\d+\.(?:mlp|attn)"),
    ],
)
def test_equal_recipes_have_one_name_in_whatever_way_they_are_written(label, kept):
    assert recipe(label) == kept
    mode = label.partition(":")[0]
    assert recipe(f"{mode}:{kept}") == kept


@pytest.mark.parametrize(
    ("label", "told", "remedy"),
    [
        ("te-fp8:delayed,histroy=16", "te-fp8:delayed has no field 'histroy'", "Did you mean 'history'"),
        ("te-fp8:delayd,history=16", "unknown recipe of te-fp8 'delayd'", "Did you mean 'delayed'"),
        ("te-fp8:delayed,amax=most_recentt", "invalid value 'most_recentt' of amax", "Did you mean 'most_recent'"),
        ("te-fp8:delayed,amax_history_len=16", "no field 'amax_history_len'", "Did you mean 'history'"),
        ("te-fp8:current,history=16", "te-fp8:current has no field 'history'", "has format, dpa, layers"),
        ("te-fp8:block,dpa=on", "te-fp8:block has no field 'dpa'", "has format, layers"),
        ("te-fp8:delayed,history=0", "invalid value '0' of history", "from 1 to 65536 [1024]"),
        ("te-fp8:delayed,history=1e3", "invalid value '1e3'", "a whole number"),
        ("te-fp8:delayed,margin=-1", "invalid value '-1' of margin", "from 0 to 16"),
        ("te-fp8:delayed,margin", "has no value", "margin=0"),
        ("te-fp8:delayed,margin=1,margin=2", "is given twice", "Keep one"),
        ("te-fp8:layers=(", "is not a regular expression", "layers=mlp"),
        ("te-fp8:layers=a/b", "cannot stand in a mode's name", "without commas, slashes"),
        ("te-fp8:layers=torchao", "torchao's own rule", "torchao-float8:layers=torchao"),
        ("te-fp8-article:layers=mlp", "te-fp8-article:delayed has no field 'layers'", "modes --fields"),
        ("baseline-bf16:layers=mlp", "has no recipes", "--mode baseline-bf16"),
    ],
)
def test_what_is_invalid_is_told_with_what_may_have_been_meant(label, told, remedy):
    with pytest.raises(UsageError) as caught:
        recipe(label)
    assert told in caught.value.what
    assert remedy in caught.value.remedy


def test_a_field_that_was_not_named_has_its_recipes_default_and_a_reference_may_name_fields_in_any_order():
    assert (split_recipe("delayed").value("format"), split_recipe("block").value("format")) == ("hybrid", "e4m3")
    assert split_recipe("delayed,history=16").value("history") == "16"
    assert (split_recipe(None).layers, split_recipe("delayed").fp8_attention) == ("all", False)
    assert written("te-fp8:margin=1,history=4") == "te-fp8:delayed,history=4,margin=1"
    assert parse_reference("h200-1x:te-fp8:margin=1/graphed", []).mode == "te-fp8:delayed,margin=1"
    assert written("te-fp8:delayed") == "te-fp8:delayed"
    assert written("te-fp8:nonsense=1") == "te-fp8:nonsense=1"
    for entry in registry.BUILTIN_MODES:
        assert set(entry.recipe_fields) <= set(entry.recipes or ())
        assert {name for names in entry.recipe_fields.values() for name in names} <= set(FIELDS)


def test_every_variant_is_made_of_what_it_says_and_read_again_after_a_mode():
    made = {variant_of(scope, graphed): (scope, graphed) for scope in (None, "model", "blocks") for graphed in (0, 1)}
    assert set(made) == set(VARIANTS)
    assert all((is_compiled(v), is_replayed(v)) == (made[v][0] is not None, bool(made[v][1])) for v in VARIANTS)
    for variant in (*VARIANTS, None):
        assert split_variant(f"te-fp8:delayed{suffix(variant)}", "it") == ("te-fp8:delayed", variant)
