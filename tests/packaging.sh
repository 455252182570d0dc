#!/usr/bin/env bash
# Build the wheel, install it outside the tree and test what was installed. Usage: packaging.sh BIN (of the environment)
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
bin=$(cd "$1" && pwd -P)
away=$(mktemp -d)
trap 'rm -rf "$away"' EXIT
cd "$away"
unset VIRTUAL_ENV PYTHONPATH
uv() { "$bin/uv" --quiet --no-progress "$@"; }
fail() { echo "packaging: $*" >&2; exit 1; }

uv build --wheel --out-dir dist "$tree"
wheel=$(ls "$away"/dist/*.whl)
uv export --project "$tree" --frozen --extra all --no-emit-project --no-hashes --output-file versions.txt

# What a training program installs: no extras.
uv venv --python "$bin/python" base
uv pip install --python base/bin/python --constraints versions.txt "$wheel"
base/bin/python -W error -c 'import mlops_events.producers, mlops_events.producers.transport, mlops_events.schemas, mlops_events.sinks'
for command in mlops-emit mlops-pipeline; do
  said=$(base/bin/$command --help 2>&1) && fail "$command runs without the extra cli"
  case $said in *"mlops-events[cli]"* | *"mlops-events[service]"* | *"mlops-events[local]"*) ;; *) fail "$command does not say which extra to install: $said" ;; esac
done

# What a service installs: everything, with the packaging tests of the tree against it.
uv venv --python "$bin/python" full
uv pip install --python full/bin/python --constraints versions.txt "${wheel}[all]" \
  hypothesis pytest pytest-asyncio pytest-timeout
for command in mlops-emit mlops-pipeline; do
  full/bin/$command --help >/dev/null || fail "$command --help fails"
done
full/bin/python -m pytest -c "$tree/pyproject.toml" --rootdir "$tree" -p no:cacheprovider "$tree/tests/test_packaging.py"
