"""The command line: one thin file per command, registered in `cli.app`; the only package that prints.

Nothing here imports torch, numpy or the rest of the library before a command runs, so that help is quick.
"""


def main() -> None:
    """Runs the command ``ucn``."""
    from ucn.cli.app import app

    app(prog_name="ucn")
