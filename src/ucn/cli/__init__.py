"""The command line: one thin file per command, listed in `cli.commands`; the only package that prints.

Nothing here imports torch, numpy or the rest of the library before a command runs, so that help is quick.
"""


def main() -> None:
    """Runs the command ``ucn``; where its first argument is a command, the others are not imported."""
    import sys

    from ucn.cli.commands import COMMANDS, build_app

    named = [name for name in sys.argv[1:2] if name in COMMANDS]
    build_app(named or COMMANDS)(prog_name="ucn")
