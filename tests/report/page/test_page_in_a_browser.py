"""The page as a browser shows it: no errors, no requests, legible charts, and text from records that stays text.

Skipped where there is no Chromium: `apt-get install chromium` brings one.
"""

import shutil
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from builders import invalid, measured, place, profile, proof, published, replayed, rounds
from cli.calling import call, keep
from report.comparing import compared

from fp8bench.kinds.run.page import page
from fp8bench.schema.record import Record
from fp8bench.tables.page import render

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: `pip install playwright`")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `apt-get install chromium`"),
]

HOSTILE = "<script>document.title='taken'</script><img src=http://example.com/x onerror=alert(1)>"
QUOTED = "\"'><svg onload=alert(2)>{{ 7*7 }}"

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
    return render(page(compared(*records), {one.run_id: one for one in records}, date(2026, 7, 1), "on demand"))


PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}


@pytest.mark.parametrize("looks", [{}, PHONE], ids=["desktop", "phone"])
def test_it_shows_without_errors_requests_or_scrolling_sideways(looks, show, text):
    watched = show(text, **looks)

    assert watched.tab.inner_text("h1").startswith("Which mode? te-fp8: ")
    assert watched.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shown = watched.tab.evaluate("[...document.querySelectorAll('figure svg')].filter(e => e.checkVisibility()).length")
    assert shown == watched.tab.evaluate("document.querySelectorAll('figure').length") > 3
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


def test_each_chart_fits_a_screen_of_a_phone(show, text):
    heights = show(text, **PHONE).tab.evaluate(
        "[...document.querySelectorAll('figure svg')].map(one => one.getBoundingClientRect().height)"
    )
    assert max(heights) <= PHONE["viewport"]["height"]


def hostile(record: Record) -> Record:
    """The record with hostile text in every field that still takes it: names of a closed list stay as they are."""

    def places(value: Any) -> Iterator[tuple[Any, Any]]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in list(items):
            if isinstance(child, str):
                yield value, key
            else:
                yield from places(child)

    root = record.model_dump(mode="json")
    for holder, key in places(root):
        if key in ("data", "optimizer"):
            # The fingerprint's must be those of the configuration, which takes no other.
            continue
        before = holder[key]
        holder[key] = f"{before}{HOSTILE}{QUOTED}"
        try:
            Record.model_validate(root)
        except ValueError:
            holder[key] = before
    return Record.model_validate(root)


@pytest.fixture(scope="module")
def hostile_records():
    """All kinds of rows, hostile in all texts. The mode, workload and instance too."""
    full = measured(
        "p5",
        "te-fp8",
        settings={"cuda_graphs": "on"},
        profile=profile(),
        evidence=measured().evidence.model_copy(
            update={
                "recipe": "r",
                "warnings": ("w",),
                "details": {"name": "value"},
                "executed": proof(),
                "graph": replayed(),
                "fp8": True,
            }
        ),
        environment=measured().environment.model_copy(update={"variables": {"NAME": "value"}, "git_commit": "c"}),
        summary=measured().summary.model_copy(update={"flags": ("a flag",)}),
        session=place(),
    )
    failed = invalid(minutes=5, remedy="Do not")
    figure = published("elsewhere", minutes=-60)
    return [hostile(one) for one in (full, failed, figure)]


def test_every_text_of_a_record_is_shown_as_text(show, hostile_records, tmp_path):
    records = hostile_records
    environment = records[0].environment.model_dump()
    texts = {name: value.values() if isinstance(value, dict) else [value] for name, value in environment.items()}
    poisoned = {name for name, values in texts.items() if any(HOSTILE in str(value) for value in values)}
    assert {"device_name", "driver", "cpu", "python", "git_commit", "versions", "variables"} <= poisoned
    assert all(HOSTILE in one.instance and HOSTILE in one.what.mode for one in records)
    for number, record in enumerate(records):
        keep(record.model_copy(update={"run_id": record.run_id.replace("/", "_")}), tmp_path / "results" / str(number))
    made = call(
        tmp_path, "report", *(one.instance for one in records), "--allow-mismatch", "-o", "page.html", "--force"
    )
    assert made.code == 0, made.stderr
    watched = show((tmp_path / "page.html").read_text())

    assert (watched.wrong, watched.requests) == ([], [])
    assert watched.tab.evaluate("document.scripts.length") == 0
    assert watched.tab.evaluate("document.images.length") == 0
    assert watched.tab.evaluate("document.querySelectorAll('[onload], [onerror]').length") == 0
    said = watched.tab.inner_text("body")
    for part in (records[0].instance, records[1].reason, records[1].remedy, records[2].provenance.citation):
        assert part in said.replace("\u00a0", " ")
    assert records[0].environment.device_name in said
    assert "{{ 7*7 }}" in said
    assert watched.tab.title() != "taken"


def test_a_script_that_slipped_in_could_not_run_or_ask_for_anything(show, text):
    slipped = text.replace("</main>", "<script>document.title='taken'</script><img src='http://example.com/x'></main>")
    watched = show(slipped)

    assert watched.tab.title() != "taken"
    assert watched.refused == [(url, "csp") for url in watched.requests]
    assert any("Content Security Policy" in line for line in watched.wrong)
