"""Coordinates, sampling, ground-truth warps, and robust estimation of homographies and poses."""
