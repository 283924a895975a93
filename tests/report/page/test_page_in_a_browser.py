"""The page as a browser shows it: no errors, no requests, legible charts. That text of records stays text:
tests/faults/test_untrusted.py.

Skipped where there is no Chromium: `apt-get install chromium` brings one.
"""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from builders import invalid, place, profile, rounds
from report.comparing import TODAY, compared

from fp8bench.kinds.run.page import page
from fp8bench.tables.page import render

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: `pip install playwright`")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `apt-get install chromium`"),
]

BASELINE = rounds(0.1, 0.101, 0.1, 0.099, profile=profile())
FP8 = rounds(0.08, 0.081, 0.08, 0.079, mode="te-fp8", recipe="delayed", minutes=10, profile=profile())
FAILED = invalid(minutes=30, session=place(1, "20260501T103000Z-bbbbbb"))


class Watched:
    """A tab, and what it did that it should not: errors, and requests beside its own file."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.wrong: list[str] = []
        self.requests: list[str] = []
        self.refused: list[tuple[str, str]] = []
        tab.on("console", lambda message: self.wrong.append(message.text))
        tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        tab.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.on("requestfailed", lambda request: self.refused.append((request.url, request.failure)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        # Tests run as root in a container, where Chromium's own sandbox cannot start.
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a page's text in a new window. looks: playwright's options of a window."""
    windows = []

    def showing(text: str, **looks: Any) -> Watched:
        path = tmp_path / "page.html"
        path.write_text(text)
        window = browser.new_context(**looks)
        windows.append(window)
        watched = Watched(window.new_page())
        watched.tab.goto(path.as_uri())
        assert watched.requests.pop(0) == path.as_uri()
        return watched

    yield showing
    for window in windows:
        window.close()


@pytest.fixture(scope="module")
def text():
    """The page of two modes that ran and one that did not."""
    records = (*BASELINE, *FP8, FAILED)
    return render(page(compared(*records), TODAY, "on demand"))


PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}


@pytest.mark.parametrize("looks", [{}, PHONE], ids=["desktop", "phone"])
def test_it_shows_without_errors_requests_or_scrolling_sideways_and_each_chart_fits_a_screen(looks, show, text):
    watched = show(text, **looks)

    assert watched.tab.inner_text("h1").startswith("Which mode? te-fp8: ")
    wider = "[...document.querySelectorAll('html, .scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert watched.tab.evaluate(wider) == 0
    shown = "[...document.querySelectorAll('figure svg')].filter(e => e.checkVisibility()).map(e => e.clientHeight)"
    heights = watched.tab.evaluate(shown)
    assert len(heights) == watched.tab.evaluate("document.querySelectorAll('figure').length") > 3
    assert max(heights) <= PHONE["viewport"]["height"]
    assert (watched.wrong, watched.requests) == ([], [])


def test_it_prints_without_its_links(show, text):
    watched = show(text)

    watched.tab.emulate_media(media="print")
    assert not watched.tab.is_visible("nav")
    assert watched.tab.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("looks", [{}, PHONE], ids=["desktop", "phone"])
def test_text_in_charts_can_be_read_and_lies_within_them(looks, show, text):
    sizes, beyond = show(text, **looks).tab.evaluate(
        "[...document.querySelectorAll('figure text')].reduce(([sizes, beyond], text) => {"
        " const svg = text.ownerSVGElement, box = svg.getBoundingClientRect(), own = text.getBoundingClientRect();"
        " sizes.push(parseFloat(getComputedStyle(text).fontSize) * box.width / svg.viewBox.baseVal.width);"
        " if (own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1)"
        "   beyond.push(text.textContent);"
        " return [sizes, beyond]; }, [[], []])"
    )
    assert min(sizes) >= 10
    assert beyond == []


def test_a_script_that_slipped_in_could_not_run_or_ask_for_anything(show, text):
    slipped = text.replace("</main>", "<script>document.title='taken'</script><img src='http://example.com/x'></main>")
    watched = show(slipped)

    assert watched.tab.title() != "taken"
    assert watched.refused == [(url, "csp") for url in watched.requests]
    assert any("Content Security Policy" in line for line in watched.wrong)
