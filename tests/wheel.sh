#!/bin/sh
# Builds the wheel, installs it where nothing of the checkout is seen, and uses it. Its dependencies are those of
# the environment that PYTHON runs in.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$PYTHON" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$folder" .
"$PYTHON" -m venv "$folder/venv"
"$PYTHON" - "$folder/venv/lib" <<'END'
import pathlib, site, sys
packages = next(pathlib.Path(sys.argv[1]).glob("python*/site-packages"))
# as plain paths: no .pth file in them is read, so the checkout that is installed there is not found
packages.joinpath("dependencies.pth").write_text("\n".join(site.getsitepackages()))
END
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$folder"/*.whl
cd "$folder"
venv/bin/python - <<'END'
import gradwire as gw, torch
assert "venv" in gw.__file__ and "site-packages" in gw.__file__, gw.__file__
x = torch.arange(1000.0)
assert (gw.decode(gw.encode("qsgd:bits=8", x)) - x).abs().max() < 8
END
venv/bin/gradwire codecs > /dev/null
echo "$(basename "$folder"/*.whl): installs, imports and runs"
