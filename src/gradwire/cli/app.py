"""The command line: `gradwire codecs | bench | train | inspect | probe | plan | selftest`.

Every command takes `--json FILE` and, where it needs codecs, `-c SPEC`, repeatable. Each imports
what is slow to import, torch above all, when it runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gradwire import __version__
from gradwire.cli.bench import bench
from gradwire.cli.codecs import codecs
from gradwire.cli.inspect import inspect
from gradwire.cli.plan import plan
from gradwire.cli.probe import probe
from gradwire.cli.selftest import selftest
from gradwire.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradwire {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Fewer, honest bits on the wire for data-parallel PyTorch.

    Example: see what there is, then what it costs in time and in error.

        gradwire codecs

        gradwire bench -c qsgd:bits=4
    """


for command in (codecs, bench, train, inspect, probe, plan, selftest):
    app.command()(command)
