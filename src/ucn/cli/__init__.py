"""The command line: one thin file per verb, registered in `cli.app`; the only place that prints.

Nothing here imports torch, numpy or the rest of the library before a verb runs, so that help comes at once.
"""


def main() -> None:
    """Runs the command ``ucn``."""
    from ucn.cli.app import app

    app(prog_name="ucn")
