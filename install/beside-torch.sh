#!/usr/bin/env bash
# Installs fp8bench into a Python that already has torch, such as that of NVIDIA's container, without replacing torch,
# Transformer Engine or their dependencies: beside-torch.sh [REQUIREMENT]
#
# Their versions become constraints, those of local builds (2.12.0a0+5bff8eb457) with their labels. pip refuses what does not
# fit them, with a message, before it changes anything. It upgrades other packages only if fp8bench needs a later version.
# constraints.txt is not used: it names the torch that fp8bench is tested with, which would replace the present one.
# The constraint of the container itself (PIP_CONSTRAINT) stays in force.
#
#   PYTHON   the interpreter of the environment [python3]
set -euo pipefail

HERE=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=${PYTHON:-python3}
PINS=$(mktemp)
trap 'rm -f "$PINS"' EXIT
KEPT='^(torch|torchvision|torchaudio|(pytorch[-_])?triton|transformer[-_]engine.*|flash[-_]attn.*|apex|numpy|cuda[-_].*|nvidia[-_].*)=='

"$PYTHON" -m pip list --format=freeze --disable-pip-version-check | grep -iE "$KEPT" | grep -viE '^nvidia[-_]ml[-_]py==' \
    >"$PINS" || true
grep -qi '^torch==' "$PINS" || { echo "this Python has no torch: use \`make bench\` instead" >&2; exit 2; }
"$PYTHON" -m pip install --disable-pip-version-check -c "$PINS" "${1:-$HERE}"
