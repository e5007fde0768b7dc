#!/usr/bin/env bash
# Installs tunecast from this action's own files, compares, and writes the summary of the run. Reads TUNECAST_*, writes
# `markdown` and `code` to $GITHUB_OUTPUT; the code is answered by the action's last step, after the comment.
set -euo pipefail

scratch=$(mktemp -d "${RUNNER_TEMP:-/tmp}/tunecast.XXXXXX")
if [ -z "${TUNECAST_COMMAND:-}" ]; then
    "$TUNECAST_PYTHON" -m venv "$scratch/venv"
    "$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$TUNECAST_ACTION"
    TUNECAST_COMMAND=$scratch/venv/bin/tunecast
fi

base=${TUNECAST_BASE:-HEAD^}
case $base in
-* | 0000000*) base=HEAD^ ;; # of a branch's first push there is no commit before
esac
if ! git rev-parse --verify --quiet --end-of-options "$base^{commit}" >/dev/null; then
    # The usual checkout has one commit alone.
    git fetch --quiet --no-tags --depth=1 origin -- "$base" || true
fi
range="$base..HEAD"
if git merge-base -- "$base" HEAD >/dev/null 2>&1; then
    range="$base...HEAD" # what the base's branch got meanwhile is not of this pull request
fi

flags=(--base "$range" --fail-on "${TUNECAST_FAIL_ON:-never}" --md "$scratch/diff.md")
[ -z "${TUNECAST_GPU:-}" ] || flags+=("--gpu=$TUNECAST_GPU")
[ -z "${TUNECAST_GPUS:-}" ] || flags+=("--gpus=$TUNECAST_GPUS")
code=0
"$TUNECAST_COMMAND" diff "${flags[@]}" || code=$?
echo "code=$code" >>"$GITHUB_OUTPUT"
if [ -s "$scratch/diff.md" ]; then
    cat "$scratch/diff.md" >>"$GITHUB_STEP_SUMMARY"
    echo "markdown=$scratch/diff.md" >>"$GITHUB_OUTPUT"
fi
