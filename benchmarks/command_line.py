"""Shared by the scripts: the argument parser."""

from __future__ import annotations

import argparse


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows a script's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
