"""Predictions as a section of the page that `fp8bench report` writes. Predictions stand apart: none is in a chart, a
ranking or the answer, which show only what was measured.
"""

from collections.abc import Sequence

from fp8bench.predict.document import document
from fp8bench.predict.prediction import Predictions
from fp8bench.report.document import Document, Heading, Note, Sentence, Table, Warned
from fp8bench.report.page.page import Part, Section

HEADING = "Predicted, not measured"
LEAD = (
    "What the rows above would come to on machines that were not measured (fp8bench predict). These are not ranked "
    "with measurements, and no chart has them. A range is not a 95 % interval: it is how far such predictions were off."
)


def section(found: Sequence[Predictions]) -> Section:
    """Return the section of the page. found: the predictions, one item for each machine."""
    return Section("predicted", HEADING, tuple(part for one in found for part in _parts(document(one))), LEAD)


def _parts(shown: Document) -> list[Part]:
    """Return the parts of a document for a section, which has no headings within it: a heading becomes a sentence."""
    found: list[Part] = []
    for part in (part for block in shown.blocks for part in block):
        if isinstance(part, Heading):
            found.append(Sentence(f"{part.text}:"))
        elif isinstance(part, (Sentence, Note, Warned, Table)):
            found.append(part)
    return found
