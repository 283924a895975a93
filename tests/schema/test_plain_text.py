"""Text from elsewhere does nothing to whoever prints it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8bench.schema.errors import inert


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("te-fp8:delayed", "te-fp8:delayed"),
        ("Größe 2, 日本", "Größe 2, 日本"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x9b2J", "\\x9b2J"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("fast\u202ewols", "fast\\u202ewols"),
        ("a\u2066b\u2069", "a\\u2066b\\u2069"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("lone \ud800", "lone \\ud800"),
        ("two\r\nlines\tand\x0bmore\u2028", "two lines and more "),
        ("", ""),
    ],
)
def test_what_a_terminal_would_obey_is_written_out_and_a_line_stays_one(text, printed):
    assert inert(text) == printed


@given(st.text(st.characters()))
def test_nothing_that_controls_is_left_and_twice_is_as_once(text):
    once = inert(text)

    assert not {"Cc", "Cs", "Zl", "Zp"} & set(map(unicodedata.category, once))
    assert not set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") & set(once)
    assert inert(once) == once
    once.encode()
