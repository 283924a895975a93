#!/usr/bin/env bash
# Installs fp8bench into a Python that has torch already, as NVIDIA's container has, and replaces nothing of it:
# beside-torch.sh [REQUIREMENT]
#
# Every version that is installed becomes a constraint, local builds (2.12.0a0+5bff8eb457) with their labels. What does
# not fit to them is refused by pip, in words, before anything is changed. constraints.txt is not used: it names the torch
# that fp8bench is tested with, which would take the place of the container's. The constraint of the container itself
# (PIP_CONSTRAINT) stays in force.
#
#   PYTHON   whose environment it is [python3]
set -euo pipefail

HERE=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=${PYTHON:-python3}
PINS=$(mktemp)
trap 'rm -f "$PINS"' EXIT

"$PYTHON" -m pip list --format=freeze --exclude-editable --disable-pip-version-check >"$PINS"
grep -qi '^torch==' "$PINS" || { echo "this Python has no torch: use \`make bench\` instead" >&2; exit 2; }
"$PYTHON" -m pip install --disable-pip-version-check -c "$PINS" "${1:-$HERE}"
