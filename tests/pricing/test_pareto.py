"""The front of time against cost, held against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from fp8bench.pricing.cost import front

NUMBER = st.integers(1, 6).map(float)


def test_what_is_slower_and_dearer_is_off_the_front():
    assert front([(1.0, 3.0), (2.0, 2.0), (3.0, 2.5), (4.0, 1.0)]) == [True, True, False, True]


def test_equal_time_or_cost_decides_by_the_other():
    assert front([(1.0, 2.0), (1.0, 3.0), (2.0, 2.0)]) == [True, False, False]


def test_there_may_be_none():
    assert front([]) == []


@given(st.lists(st.tuples(NUMBER, NUMBER), max_size=12))
def test_it_is_what_its_definition_says(points):
    def beaten(one):
        return any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points)

    assert front(points) == [not beaten(one) for one in points]


def test_the_front_has_what_no_other_beats_in_time_and_money():
    options = [(4.0, 10.0), (2.0, 12.0), (4.0, 11.0), (5.0, 10.0), (1.0, 40.0), (4.0, 10.0)]

    assert front(options) == [True, True, False, False, True, True]
    assert front([]) == []
