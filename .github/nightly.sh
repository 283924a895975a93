#!/usr/bin/env bash
# The steps of the nightly workflow, each of which can be tried by hand: .github/nightly.sh setup|doctor|run|check|report
#
#   NIGHTLY_OUT        where this night's results and files go [nightly]
#   NIGHTLY_STATE      what outlives a night on this host: the reference, the latest 30 nights
#                      [~/.local/state/fp8bench/nightly]
#   NIGHTLY_DOCTOR     options of `fp8bench doctor`, as --quick
#   NIGHTLY_RUN        options of `fp8bench run`, as --rounds 6 --mode te-fp8
#   NIGHTLY_CHECK      options of `fp8bench check`, as --under-test torch
#   NIGHTLY_LIMIT      how much longer a step may take [3%]
#   NIGHTLY_MINUTES    for all rounds: some are added while a variant is undecided beside the reference [60]
#   NIGHTLY_FP8BENCH   the program [.venv/bin/fp8bench, which `setup` installs]
#
# The first night on a host has nothing to be held against: its results become the reference, if every mode that was
# asked for ran, in two rounds or more, and so do the next four that pass: then it is known how nights differ.
# `.github/nightly.sh adopt` begins a new reference with this night on the same terms, after a change that was meant. A
# night that stays undecided warns; the third in a row fails.
set -euo pipefail
cd "$(dirname "$0")/.."

OUT=${NIGHTLY_OUT:-nightly}
RESULTS=$OUT/results
STATE=${NIGHTLY_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/fp8bench/nightly}
REFERENCE=$STATE/reference
FP8BENCH=${NIGHTLY_FP8BENCH:-.venv/bin/fp8bench}
NIGHTS=$STATE/nights
UNDECIDED=$STATE/undecided
OF_REFERENCE=5
KEPT=30
LIMIT=${NIGHTLY_LIMIT:-3%}
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
    date -u +%Y%m%dT%H%M%SZ >"$OUT/.nightly"
    "$FP8BENCH" --version
}

doctor() {
    "$FP8BENCH" doctor ${DOCTOR[@]+"${DOCTOR[@]}"} | tee "$OUT/doctor.txt"
}

# Its exit code is kept: 0 says that every mode that was asked for ran.
run() {
    # A reference of ten rounds decides what one of three leaves open; NIGHTLY_RUN may give another number.
    local code=0 until=(--rounds 10)
    [ ! -d "$REFERENCE" ] ||
        until=(--until-decided "$REFERENCE" --max-regression "$LIMIT" --max-minutes "${NIGHTLY_MINUTES:-60}")
    "$FP8BENCH" run --quiet --results-dir "$RESULTS" "${until[@]}" ${RUN[@]+"${RUN[@]}"} || code=$?
    echo "$code" >"$OUT/run.exit"
    return "$code"
}

# With --strict, a mode that the reference lacks fails: it would never be checked.
check() {
    local code=0 undecided
    mkdir -p "$NIGHTS"
    cp -R "$RESULTS" "$NIGHTS/$(cat "$OUT/.nightly")"
    find "$NIGHTS" -mindepth 1 -maxdepth 1 | sort | head -n "-$KEPT" | xargs -r rm -rf
    if [ ! -d "$REFERENCE" ]; then
        say "This host has no reference yet, so nothing was checked."
        adopt
        return
    fi
    GITHUB_STEP_SUMMARY=$SUMMARY "$FP8BENCH" check --results-dir "$NIGHTS" --against "$REFERENCE" --nights --summary \
        --strict --export "junit=$OUT/junit.xml" --export "csv=$OUT/check.csv" --max-regression "$LIMIT" \
        ${CHECK[@]+"${CHECK[@]}"} || code=$?
    if [ "$code" -eq 6 ]; then
        undecided=$(($(cat "$UNDECIDED" 2>/dev/null || echo 0) + 1))
        echo "$undecided" >"$UNDECIDED"
        echo "::warning title=fp8bench check::undecided, night $undecided in a row; the third fails"
        [ "$undecided" -ge 3 ] || return 0
    else
        rm -f "$UNDECIDED"
    fi
    if [ "$code" -eq 0 ] && [ "$(find "$REFERENCE" -mindepth 1 -maxdepth 1 | wc -l)" -lt "$OF_REFERENCE" ]; then
        cp -R "$RESULTS" "$REFERENCE/$(cat "$OUT/.nightly")"
    fi
    [ "$code" -eq 0 ] || say "If this is what was meant, \`.github/nightly.sh adopt\` makes this night the reference."
    return "$code"
}

report() {
    local instances=()
    for folder in "$RESULTS"/*/; do
        [ -d "$folder" ] && instances+=("$(basename "$folder")")
    done
    if [ ${#instances[@]} -eq 0 ]; then
        say "Nothing was measured, so there is nothing to report."
        return
    fi
    { echo "## fp8bench compare"; echo; } >>"$SUMMARY"
    "$FP8BENCH" compare "${instances[@]}" --results-dir "$RESULTS" --allow-mismatch --format markdown | tee -a "$SUMMARY"
    { echo; echo "## Nights"; echo; } >>"$SUMMARY"
    "$FP8BENCH" check --history --results-dir "$NIGHTS" --format markdown | tee -a "$SUMMARY"
    "$FP8BENCH" report --results-dir "$RESULTS" --allow-mismatch --force -o "$OUT/report.html"
}

# Beside the old one first, so that a host that stops meanwhile has one of the two.
adopt() {
    local ran
    ran=$(cat "$OUT/run.exit" 2>/dev/null || echo "no exit code")
    if ! "$FP8BENCH" check --plan --results-dir "$RESULTS" 2>&1 | tee -a "$SUMMARY" || [ "$ran" != 0 ]; then
        say "This night does not become the reference (\`run\` ended with $ran): every mode that is asked for must have" \
            "run, in two rounds or more. The first night that is whole becomes it; \`.github/nightly.sh adopt\` replaces" \
            "one that exists."
        return 2
    fi
    mkdir -p "$STATE"
    rm -rf "$REFERENCE.new" "$REFERENCE.old"
    mkdir "$REFERENCE.new"
    cp -R "$RESULTS" "$REFERENCE.new/$(cat "$OUT/.nightly")"
    [ ! -d "$REFERENCE" ] || mv "$REFERENCE" "$REFERENCE.old"
    mv "$REFERENCE.new" "$REFERENCE"
    say "This night's results are the reference now, in $REFERENCE."
}

say() {
    echo "$*" | tee -a "$SUMMARY"
}

case "${1:-}" in
    setup | doctor | run | check | report | adopt) "$1" ;;
    *) echo "usage: .github/nightly.sh setup|doctor|run|check|report|adopt" >&2; exit 2 ;;
esac
