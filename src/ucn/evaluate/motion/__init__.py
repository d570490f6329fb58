"""Relative pose between frames."""
