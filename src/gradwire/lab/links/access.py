"""Who may have links: root at once, others in a user namespace of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from gradwire.lab.links.namespaces import RefusedError, network
from gradwire.lab.links.shape import Shape

UNSHARE = ("unshare", "--user", "--map-root-user")
MARK = "GRADWIRE_USER_NAMESPACE"  # set in a process that was started anew


def prepare(shape: Shape) -> None:
    """Make sure that `network` will work, or raise `ValueError` and say what is missing.

    An ordinary user's process is started anew, with the same arguments, inside a user namespace in
    which it has the rights of root. Call this before there is anything to lose.
    """
    try:
        with network(1, shape):
            return
    except RefusedError as error:
        if MARK in os.environ:
            raise ValueError(_refusal(str(error))) from None
    _check_user_namespaces()
    command = [*UNSHARE, sys.executable, *sys.orig_argv[1:]]
    os.execvpe(command[0], command, os.environ | {MARK: "1"})


def _check_user_namespaces() -> None:
    if shutil.which(UNSHARE[0]) is None:
        raise ValueError(
            "links need root, or `unshare` to do without: install util-linux "
            "(`apt install util-linux`)."
        )
    done = subprocess.run([*UNSHARE, "true"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(_refusal(" ".join(done.stderr.split())))


def _refusal(said: str) -> str:
    return (
        f"links need network namespaces, which were refused ({said}): run as root, allow user "
        "namespaces (`sysctl kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu), or start "
        "the container with `--privileged`."
    )
