"""What anybody may send (a record, a price list, a configuration) is text: nothing in it is executed, no program that
shows it obeys it, and no name in it leads out of the folder.
"""

import csv
import gzip
import io
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from builders import evidence, in_one_file, machine_called, measured, profile, rounds
from cli.calling import invoked
from kept import record_paths

import fp8bench
from fp8bench.config.request import resolve
from fp8bench.launch.place import instance_called
from fp8bench.machine.gpus import Machine
from fp8bench.pricing.catalog import load
from fp8bench.profiling import kernels
from fp8bench.schema.errors import UsageError
from fp8bench.schema.yaml_text import parse_mapping, parse_yaml
from fp8bench.tables import render
from fp8bench.tables.document import Cells, CsvLines, Document, Heading, Note, Sentence, Table, Warned

HOSTILE = (
    "=HYPERLINK(0)\x1b]0;title\x07\x1b[2J\r\n<script>alert(1)</script><img src=x onerror=alert(1)>"
    "|`id`|[x](javascript:alert(1))![i](http://h/p.png)\u202e\u200b]]>&x;</svg>{{7*7}}${jndi:x}%n\u2028'\""
)
ACTIVE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b-\u200f\u2028\u2029\ufeff]")
INSTANCE = "h200-1x"
KEPT = {"schema_version", "kind", "status", "cause", "source", "instance", "run_id", "created_utc", "fingerprint"}


def hostile(value: Any, name: str = "") -> Any:
    """The same document with every text that the format leaves free replaced."""
    if isinstance(value, dict):
        return {key: each if key in KEPT else hostile(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [hostile(each, name) for each in value]
    return HOSTILE if isinstance(value, str) and name not in CHOICES else value


CHOICES = frozenset(
    "device compile cuda_graphs optimizer data te_attention parallel scope join arm activation_checkpointing category "
    "weight_dtype basis id reference session_id label published_on unit".split()
)
"""Fields of which the format knows every value."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two rounds of a reference, and three of a mode that says nothing but what is hostile."""
    root = tmp_path_factory.mktemp("hostile") / "results"
    (root / INSTANCE).mkdir(parents=True)
    plain = rounds(0.1, 0.11, instance=INSTANCE, profile=profile(), machine=machine_called("a"))
    odd = rounds(
        *(0.2, 0.21, 0.22),
        instance=INSTANCE,
        mode="te-bf16",
        minutes=60,
        profile=profile(),
        evidence=evidence(details={"x": "y"}, warnings=("w",)),
        machine=machine_called("a"),
    )
    for record in (*plain, *odd):
        found = in_one_file(record)
        found = hostile(found) if record in odd else found
        # All do the same work, and say so twice.
        found["config"]["workload"] = found["fingerprint"]["workload"] = HOSTILE
        (root / INSTANCE / f"{record.run_id}.json").write_text(json.dumps(found))
    stopped = in_one_file(measured(INSTANCE, "te-fp8", minutes=99))
    stopped |= {"status": "failed", "reason": HOSTILE, "remedy": HOSTILE, "summary": None, "run_id": "stopped"}
    (root / INSTANCE / "stopped.json").write_text(json.dumps(stopped))
    return root


class Page(HTMLParser):
    """The elements of a page, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def assert_inert(text: str) -> None:
    assert not ACTIVE.findall(text.replace("\n", "")), ACTIVE.findall(text.replace("\n", ""))[:5]


@pytest.mark.parametrize("words", [("compare", INSTANCE), ("compare", INSTANCE, "--all", "--wide"), ("explain",)])
@pytest.mark.parametrize("form", ["table", *render.FORMATS])
def test_no_format_of_a_table_obeys_a_record(words, form, folder):
    if words[0] == "explain":
        name = record_paths(folder / INSTANCE, "*te-bf16*.json")[-1]
        words, form = ("explain", name), "markdown" if form in ("csv", "latex") else form
    done = invoked(*words, "--format", form, "--results-dir", folder)

    assert done.exit_code == 0, done.stderr
    assert_inert(done.stderr)
    if form == "json":
        json.loads(done.stdout)
        return
    if form == "csv":
        cells = [cell for row in csv.reader(io.StringIO(done.stdout)) for cell in row]
        assert any("HYPERLINK" in cell for cell in cells)
        assert not [cell for cell in cells if cell.lstrip().startswith(("=", "+", "@"))]
        assert not [cell for cell in cells if cell.startswith("-") and not is_number(cell)]
    assert_inert(done.stdout)
    if form == "latex":
        # Besides escaped characters, signs, and what makes a table.
        known = r"[%&$#_{}]|text\w+{}|pm|approx|times|hline|(?:begin|end){tabular}"
        assert re.findall(rf"\\(?!{known}).*", done.stdout.replace("\\\\\n", "\n")) == []
    if form == "markdown":
        assert "<script" not in done.stdout
        assert "<img" not in done.stdout
        assert "](" not in done.stdout


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_every_part_of_a_document_is_inert_in_every_format():
    column = Cells(HOSTILE, (HOSTILE,), "word", unit=HOSTILE, of=HOSTILE)
    parts = (Heading(HOSTILE), Sentence(HOSTILE), Note(HOSTILE), Warned(HOSTILE))
    tables = (Table((column,)), Table((column,), whole=True), Table((column,)))
    document = Document(((*parts, *tables),), data={"a": HOSTILE}, lines=CsvLines((HOSTILE,), ((HOSTILE,),)))
    for form in (*render.FORMATS, render.PIPE):
        text = render.render(document, form)
        assert_inert(text)
        if form == "markdown":
            assert "<script" not in text
            assert "](" not in text


def test_a_page_has_no_element_and_no_address_of_a_record(folder, tmp_path):
    page = tmp_path / "page.html"
    assert invoked("report", INSTANCE, "-o", page, "--results-dir", folder).exit_code == 0
    text = page.read_text()
    found = Page(text)

    assert_inert(text)
    assert "HYPERLINK" in text
    assert found.tags.count("svg") >= 3
    assert not {"script", "img", "iframe", "object", "embed", "base", "form", "link", "foreignobject"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "srcdoc", "style")]
    assert {value[:1] for name, value in found.attributes if name in ("href", "xlink:href")} <= {"#"}


def test_a_plot_has_no_element_of_a_record(folder, tmp_path):
    path = tmp_path / "plot.svg"
    assert (
        invoked("report", INSTANCE, "--plot", "price-performance", "-o", path, "--results-dir", folder).exit_code == 0
    )
    root = ElementTree.parse(path).getroot()
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}

    assert_inert(path.read_text())
    described = {"metadata", "RDF", "Work", "type", "format"}
    assert tags - described <= {"svg", "style", "defs", "g", "path", "rect", "text"}
    assert not [name for element in root.iter() for name in element.attrib if name.startswith("on") or "href" in name]


@pytest.mark.parametrize("form", ["junit", "csv", "markdown", "json"])
def test_no_file_for_another_program_obeys_a_record(form, folder, tmp_path):
    path = tmp_path / "out"
    done = invoked("check", "--against", folder, "--export", f"{form}={path}", "--results-dir", folder)
    text = path.read_text()

    assert done.exit_code in (0, 1, 4)
    assert_inert(text)
    if form == "junit":
        assert {element.tag for element in ElementTree.fromstring(text).iter()} <= {
            *("testsuites", "testsuite", "testcase", "failure", "error", "skipped", "system-out")
        }
    elif form not in ("csv", "markdown"):
        json.loads(text)


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "aliases that grow without bound"),
        ("mode: &a [*a]", "aliases that grow without bound"),
        ("a: &a {b: *a}", "aliases that grow without bound"),
        ("[" * 100_000, "levels deep"),
        ("a:\n" + "".join(" " * n + "a:\n" for n in range(1, 200)), "levels deep"),
        ("mode: a\nmode: b", "twice"),
        ("a: {b: 1, b: 2}", "twice"),
        ("mode: !!python/object/apply:os.system ['touch pwned']", "is not YAML"),
        ("mode: !!python/name:os.system", "is not YAML"),
        ("mode: !!python/object/new:type [x, [], {}]", "is not YAML"),
        ("mode: !unknown x", "is not YAML"),
        ("batch_size: 0x" + "f" * 5000, r"is no plain number: write it in decimal digits"),
        ("batch_size: " + ":".join(["59"] * 3000), r"\.\.\. is no plain number"),
        ("batch_size: " + "9" * 5000, "is not YAML"),
        ("a: 2026-02-30", "is not YAML"),
        ("? [a]\n: 1", "is not YAML"),
        ("a: 1\n---\nb: 2", "is not YAML"),
        ("a: \x00", "is not YAML"),
        ("- a", "not a mapping"),
        ("a: *b", "is not YAML"),
        ("%YAML 9.9\n---\na: 1", "is not YAML"),
    ],
    ids=lambda value: re.sub(r"\W+", "-", value)[:30],
)
def test_yaml_of_anybodys_executes_nothing_and_ends_at_once(text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    began = time.process_time()
    with pytest.raises(UsageError, match=said):
        parse_mapping(text, Path("c.yaml"))

    assert time.process_time() - began < 1
    assert list(tmp_path.iterdir()) == []


def test_aliases_that_stand_for_little_are_taken():
    assert parse_yaml("a: &a [1, 2]\nb: *a\nc: {<<: {d: 1}}", Path("c")) == {"a": [1, 2], "b": [1, 2], "c": {"d": 1}}


@pytest.mark.parametrize(
    "name", ["../out", "/etc/out", "a/../../out", ".", "..", "a\\b", "x\x00y", "\x1b[31m", ".hidden"]
)
@pytest.mark.parametrize("field", ["name", "session"])
def test_no_name_of_a_run_leads_out_of_the_folder(field, name):
    with pytest.raises(UsageError, match="letters, digits"):
        resolve({field: name}, {}, {}, None)


@pytest.mark.parametrize(
    "name", ["../out", "/etc/out", ".", "..", "a\\b", "x\x00y", "\x1b[31m", ".hidden", "a\n", "\udcff"]
)
def test_nor_does_that_of_an_instance_of_ones_own(name):
    machine = Machine(gpus=(), product_name=None, cpu_count=1)
    with pytest.raises(UsageError):
        instance_called(name, machine, load(), has_price=True)


def test_nothing_that_can_be_sent_is_unpickled():
    """Neither pickle nor what rests on it is imported in the program; torch is asked for no file."""
    import_of = re.compile(r"^\s*(?:import|from) (?:pickle|shelve|dill|marshal|joblib)\b", re.MULTILINE)
    call_of = re.compile(r"\b(?:torch|np|numpy)\.load\(|unsafe_load|full_load|yaml\.load\(|(?<![.\w])(?:eval|exec)\(")
    texts = {path.name: path.read_text() for path in Path(fp8bench.__file__).parent.rglob("*.py")}

    assert len(texts) > 100
    assert [name for name, text in texts.items() if import_of.search(text) or call_of.search(text)] == []


def test_a_trace_that_unzips_without_end_or_is_nested_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "LARGEST_BYTES", 1 << 20)
    bomb, deep = tmp_path / "bomb.json.gz", tmp_path / "deep.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (3 << 20)))
    deep.write_bytes(gzip.compress(b'{"traceEvents": ' + b"[" * 200_000))

    with pytest.raises(UsageError, match="unzips to more than 1 MiB"):
        kernels.read_trace(bomb)
    with pytest.raises(UsageError, match="nested too deeply"):
        kernels.read_trace(deep)
