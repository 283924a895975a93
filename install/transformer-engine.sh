#!/usr/bin/env bash
# Installs Transformer Engine next to fp8bench if there is an NVIDIA GPU: transformer-engine.sh PYTHON
#
# Its PyTorch extension is built from source, against the torch that is installed. A failed build is no error: the script
# prints the reason, and the te-* modes are reported as unsupported. A failed build is not tried again until the
# environment is set up anew, or its note (.transformer-engine-failed next to bin/) is removed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

PYTHON=${1:?"usage: transformer-engine.sh PYTHON"}
ENVIRONMENT=$("$PYTHON" -c 'import sys; print(sys.prefix)') || exit
FAILED=$ENVIRONMENT/.transformer-engine-failed
LOG=$ENVIRONMENT/transformer-engine.log

has_gpu() {
    { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; } || [ -e "${NVIDIA_PROC:-/proc/driver/nvidia}/version" ]
}

if ! has_gpu; then
    exit 0
fi
if "$PYTHON" -c 'import transformer_engine.pytorch' 2>/dev/null; then
    exit 0
fi
if [ -e "$FAILED" ]; then
    echo "Transformer Engine is not installed, so te-* modes are unsupported: $(cat "$FAILED") (remove $FAILED to try again)"
    exit 0
fi

# The headers of the CUDA libraries that were installed with torch.
HEADERS=$("$PYTHON" -c 'import glob, sysconfig
print(":".join(sorted(glob.glob(sysconfig.get_path("purelib") + "/nvidia/**/include", recursive=True))))')
export CPATH=${HEADERS}${CPATH:+:$CPATH}
export NVTE_FRAMEWORK=pytorch
export MAX_JOBS=${MAX_JOBS:-$(nproc)}

# The extension is built against the installed torch, not against another one in an isolated build environment, so the
# build dependencies must be installed here too.
REQUIREMENT=$("$PYTHON" -c 'import tomllib
print(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["te"][0])') || exit
install() {
    "$PYTHON" -m pip install -c constraints.txt "$@" >>"$LOG" 2>&1
}
: >"$LOG"

echo "Transformer Engine is being built for this torch on $MAX_JOBS cores; one build on 16 cores took 65 s, and fewer"
echo "take longer. Its log is $LOG."
STARTED=$SECONDS
if install setuptools wheel packaging ninja pybind11 && install --no-build-isolation "$REQUIREMENT" \
    && "$PYTHON" -c 'import transformer_engine.pytorch' 2>>"$LOG"; then
    echo "Transformer Engine was installed in $((SECONDS - STARTED)) s."
    exit 0
fi
REASON=$(grep -iE '(error|fatal)' "$LOG" | grep -v '^ *note:' | tail -n 1 | cut -c 1-300)
echo "${REASON:-see $LOG}" >"$FAILED"
echo "Transformer Engine could not be installed in $((SECONDS - STARTED)) s, so te-* modes are unsupported: $(cat "$FAILED")"
echo "The whole log is $LOG. Everything else is measured."
