"""Are torch, timm, torchao and Transformer Engine there, in versions that fp8bench supports, and do they import?"""

import re
from dataclasses import dataclass

from fp8bench.doctor.ask import Failure
from fp8bench.doctor.facts import Facts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.doctor.probe_facts import ImportFacts, TorchFacts, TransformerEngineFacts
from fp8bench.machine.driver import Version

Imported = TorchFacts | ImportFacts | TransformerEngineFacts


@dataclass(frozen=True)
class Range:
    """Versions from `least` on, below `below`."""

    least: Version
    below: Version | None = None

    def __str__(self) -> str:
        upper = "" if self.below is None else f",<{'.'.join(map(str, self.below))}"
        return f">={'.'.join(map(str, self.least))}{upper}"


SUPPORTED = {
    "torch": Range((2, 11), (2, 16)),
    "timm": Range((1, 0, 20)),
    "torchao": Range((0, 17)),
    "transformer-engine": Range((2, 9)),
}
"""As pyproject.toml has them, which a test holds these against: the sources may run without being installed."""

TE = Check("transformer-engine", "software", "Transformer Engine")
CHECKS = {name: Check(name, "software", name) for name in ("torch", "timm", "torchao")}
INSTALL_TE = "Install it for the te modes: `pip install fp8bench[te]`"


def findings(facts: Facts) -> list[Finding]:
    """One a package."""
    probed = facts.probed
    answers = {"torch": probed.torch, "timm": probed.timm, "torchao": probed.torchao}
    plain = [package(CHECKS[name], facts.installed[name], answer) for name, answer in answers.items()]
    return [*plain, transformer_engine(facts)]


def package(check: Check, installed: str | None, answer: Imported | Failure | None) -> Finding:
    """installed: the version that the package manager knows."""
    supported = SUPPORTED[check.name]
    install = f"Install it: `pip install '{check.name}{supported}'`"
    if isinstance(answer, Failure):
        said = answer.model_copy(update={"said": f"{installed or 'not installed'}; import: {answer.said}"})
        return said.reported(check, install)
    version = installed if answer is None else answer.version
    if version is None:
        return check.problem("not installed", install)
    text = f"{version}, imports" if answer is not None else version
    numbers = parsed(version)
    if numbers < supported.least:
        return check.problem(f"{text}; older than the supported {supported}", install)
    if supported.below is not None and numbers >= supported.below:
        return check.warning(f"{text}; newer than the supported {supported}", install)
    return check.ok(text)


def transformer_engine(facts: Facts) -> Finding:
    """Missing it is a warning, and only on a machine with a GPU: nothing else needs it."""
    if facts.driver.why_no_gpu:
        return TE.unknown(facts.driver.why_no_gpu)
    answer = facts.probed.transformer_engine
    if facts.installed[TE.name] is None and not isinstance(answer, TransformerEngineFacts):
        return TE.warning("not installed: te-bf16 and te-fp8 do not run here", INSTALL_TE)
    return package(TE, facts.installed[TE.name], answer)


def parsed(version: str) -> Version:
    """The release's numbers: 2.11.0a0+cu130 is (2, 11, 0)."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()
