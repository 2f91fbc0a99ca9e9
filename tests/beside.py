"""Long checks in processes of their own, which go on beside the other tests.

Most tests wait for something more often than they compute, so a second core has time for these. A
module that has one calls it `BESIDE`; `conftest.py` starts it when tests have been collected.
"""

import os
import subprocess
import tempfile
from pathlib import Path


class Beside:
    """A command, started once and waited for when its result is asked for."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._command, self._env = command, env
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, env=os.environ | self._env, stdout=self._output,
            stderr=subprocess.STDOUT, cwd=Path(__file__).parents[1],
        )  # fmt: skip

    def result(self, timeout: float = 600) -> tuple[int, str]:
        """The exit code, and what was written to both streams."""
        if self._process is None:
            self.start()
        assert self._process is not None
        code = self._process.wait(timeout)
        self._output.seek(0)
        return code, self._output.read().decode()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._output.close()
