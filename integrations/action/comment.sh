#!/usr/bin/env bash
# Creates or updates the one comment of this action on a pull request, found by its hidden first line. Reads
# TUNECAST_MARKDOWN, TUNECAST_PULL, GITHUB_REPOSITORY; gh reads GH_TOKEN. Who may not write a comment (a fork's pull
# request) is told where the answer is, and nothing fails.
set -euo pipefail

marker='<!-- tunecast: training files -->'
[[ $TUNECAST_PULL =~ ^[0-9]+$ && $GITHUB_REPOSITORY =~ ^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$ ]] || {
    echo "::error title=tunecast::not a pull request of a repository" && exit 2
}
body=$(mktemp "${RUNNER_TEMP:-/tmp}/tunecast.XXXXXX")
{ echo "$marker" && cat "$TUNECAST_MARKDOWN"; } >"$body"

no_comment() {
    echo "::notice title=tunecast::no comment was written: this token may not (a pull request from a fork, or a" \
        "workflow without 'pull-requests: write'). What was found is in the summary of this run."
    exit 0
}

comments=repos/$GITHUB_REPOSITORY/issues/$TUNECAST_PULL/comments
# A person's comment that begins alike is not ours to change.
ours="map(select(.user.type == \"Bot\" and (.body | startswith(\"$marker\")))) | .[].id"
ids=$(gh api --paginate "$comments?per_page=100" --jq "$ours") || no_comment
id=${ids%%$'\n'*}
if [[ $id =~ ^[0-9]+$ ]]; then
    gh api --silent --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$id" --field "body=@$body" || no_comment
elif grep -q '^\*\*No training file changed' "$TUNECAST_MARKDOWN"; then
    echo "No training file changed: no comment."
else
    gh api --silent --method POST "$comments" --field "body=@$body" || no_comment
fi
