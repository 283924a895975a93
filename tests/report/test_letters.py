"""Letters for long texts: one each, in order, and never two alike."""

from fp8bench.report.document import Letters


def test_equal_texts_share_a_letter_and_the_lines_say_them_in_order():
    letters = Letters()
    assert [letters.of("late"), letters.of("early"), letters.of("late")] == ["a", "b", "a"]
    assert letters.lines() == ["[a] late", "[b] early"]


def test_texts_given_first_come_first():
    letters = Letters(["one", "two", "one"])
    assert letters.of("two") == "b"
    assert letters.of("three") == "c"


def test_after_z_they_are_doubled():
    letters = Letters(map(str, range(54)))
    assert [letters.of(str(place)) for place in (25, 26, 27, 51, 52)] == ["z", "aa", "bb", "zz", "aaa"]


def test_without_texts_there_are_no_lines():
    assert Letters().lines() == []
