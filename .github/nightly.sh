#!/usr/bin/env bash
# The steps of the nightly workflow, each of which can be tried by hand: .github/nightly.sh setup|doctor|run|check|report
#
#   NIGHTLY_OUT        where this night's results and files go [nightly]
#   NIGHTLY_STATE      what outlives a night on this host: the reference [~/.local/state/fp8bench/nightly]
#   NIGHTLY_DOCTOR     options of `fp8bench doctor`, as --quick
#   NIGHTLY_RUN        options of `fp8bench run`, as --rounds 6 --mode te-fp8
#   NIGHTLY_CHECK      options of `fp8bench check`, as --strict --max-regression 2%
#   NIGHTLY_FP8BENCH   the program [.venv/bin/fp8bench, which `setup` installs]
#
# The first night on a host has nothing to be held against: its results become the reference. `.github/nightly.sh adopt`
# makes this night's results the reference, after a change that was meant.
set -euo pipefail
cd "$(dirname "$0")/.."

OUT=${NIGHTLY_OUT:-nightly}
RESULTS=$OUT/results
STATE=${NIGHTLY_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/fp8bench/nightly}
REFERENCE=$STATE/reference
FP8BENCH=${NIGHTLY_FP8BENCH:-.venv/bin/fp8bench}
SUMMARY=${GITHUB_STEP_SUMMARY:-$OUT/summary.md}
read -ra DOCTOR <<<"${NIGHTLY_DOCTOR:-}"
read -ra RUN <<<"${NIGHTLY_RUN:-}"
read -ra CHECK <<<"${NIGHTLY_CHECK:-}"

# The environment is kept from night to night, last night's results are not.
setup() {
    [ -n "${NIGHTLY_FP8BENCH:-}" ] || make install
    if [ -e "$OUT" ] && [ ! -e "$OUT/.nightly" ]; then
        echo "$OUT exists, and no night made it: name another folder with NIGHTLY_OUT" >&2
        return 2
    fi
    rm -rf "${OUT:?}"
    mkdir -p "$RESULTS"
    touch "$OUT/.nightly"
    "$FP8BENCH" --version
}

doctor() {
    "$FP8BENCH" doctor ${DOCTOR[@]+"${DOCTOR[@]}"} | tee "$OUT/doctor.txt"
}

run() {
    "$FP8BENCH" run --quiet --results-dir "$RESULTS" ${RUN[@]+"${RUN[@]}"}
}

check() {
    if [ ! -d "$REFERENCE" ]; then
        echo "This host has no reference yet, so nothing was checked; this night's results become it." | tee -a "$SUMMARY"
        adopt
        return
    fi
    GITHUB_STEP_SUMMARY=$SUMMARY "$FP8BENCH" check --results-dir "$RESULTS" --against "$REFERENCE" --summary \
        --export "junit=$OUT/junit.xml" --export "bencher=$OUT/bencher.json" --export "csv=$OUT/check.csv" \
        --export "github-smaller=$OUT/step-time.json" --export "github-bigger=$OUT/throughput.json" \
        ${CHECK[@]+"${CHECK[@]}"}
}

report() {
    local instances=()
    for folder in "$RESULTS"/*/; do
        [ -d "$folder" ] && instances+=("$(basename "$folder")")
    done
    if [ ${#instances[@]} -eq 0 ]; then
        echo "Nothing was measured, so there is nothing to report." | tee -a "$SUMMARY"
        return
    fi
    { echo "## fp8bench compare"; echo; } >>"$SUMMARY"
    "$FP8BENCH" compare "${instances[@]}" --results-dir "$RESULTS" --allow-mismatch --format markdown | tee -a "$SUMMARY"
    "$FP8BENCH" report --results-dir "$RESULTS" --allow-mismatch --force -o "$OUT/report.html"
}

# Beside the old one first, so that a host that stops meanwhile has one of the two.
adopt() {
    if [ -z "$(find "$RESULTS" -name '*.json' -print -quit)" ]; then
        echo "nothing was measured, so there is no reference" >&2
        return 2
    fi
    mkdir -p "$STATE"
    rm -rf "$REFERENCE.new" "$REFERENCE.old"
    cp -R "$RESULTS" "$REFERENCE.new"
    [ ! -d "$REFERENCE" ] || mv "$REFERENCE" "$REFERENCE.old"
    mv "$REFERENCE.new" "$REFERENCE"
    echo "the reference is now $REFERENCE"
}

case "${1:-}" in
    setup | doctor | run | check | report | adopt) "$1" ;;
    *) echo "usage: .github/nightly.sh setup|doctor|run|check|report|adopt" >&2; exit 2 ;;
esac
