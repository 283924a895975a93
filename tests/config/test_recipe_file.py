"""A recipe in a file says what a recipe's name can; its errors have their line."""

from pathlib import Path

import pytest

from fp8bench.config.recipe_file import recipe_in
from fp8bench.config.sources import resolve
from fp8bench.schema.errors import UsageError


@pytest.fixture
def recipe_of(tmp_path):
    def read(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return recipe_in(path)

    return read


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("recipe: delayed\n", "delayed"),
        ("margin: 1\nrecipe: delayed\namax_history_len: 16\n", "delayed,history=16,margin=1"),
        ("recipe: delayed\nfp8_dpa: true\nfp8_format: E4M3\n", "delayed,format=e4m3,dpa=on"),
        ("recipe: delayed\nfp8_dpa: false\namax_compute_algo: most_recent\n", "delayed,amax=most_recent"),
        ("recipe: rowwise\nlayers: mlp\n", "rowwise,layers=mlp"),
    ],
)
def test_a_file_says_what_a_name_says(recipe_of, text, recipe):
    assert recipe_of(text) == recipe


@pytest.mark.parametrize(
    ("text", "told", "remedy"),
    [
        ("recipe: delayed\namax_history_length: 4\n", "2: unknown field 'amax_history_length'", "amax_history_len"),
        ("margin: 1\n", "names no recipe", "recipe: delayed"),
        ("margin: 1\nrecipe: delayd\n", "line 2: unknown recipe 'delayd'", "Did you mean 'delayed'"),
        ("recipe: delayed\n\nmargin: many\n", "line 3, field margin: te-fp8:delayed: invalid value 'many'", "0 to 16"),
        ("recipe: current\nmargin: 1\n", "line 2, field margin", "format, dpa, layers"),
        ("- delayed\n", "is not a mapping", "name: value"),
    ],
)
def test_what_is_invalid_is_told_with_its_line(recipe_of, text, told, remedy):
    with pytest.raises(UsageError) as caught:
        recipe_of(text)
    assert told in caught.value.what
    assert remedy in caught.value.remedy
    with pytest.raises(UsageError, match=r"cannot read .*gone\.yaml"):
        recipe_in(Path("gone.yaml"))


def test_commas_of_a_variable_part_modes_and_not_the_fields_of_one():
    text = "te-fp8:delayed,history=16,margin=1, te-bf16 ,te-fp8:margin=2,torchao-float8:layers=mlp"
    request = resolve({}, {"FP8BENCH_MODE": text}, {}, None).request
    assert request.mode == (
        "te-fp8:delayed,history=16,margin=1",
        "te-bf16",
        "te-fp8:margin=2",
        "torchao-float8:layers=mlp",
    )
