"""The typer app of all commands."""

from ucn.cli.commands import build_app

app = build_app()
