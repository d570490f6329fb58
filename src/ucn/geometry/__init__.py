"""Coordinates, sampling, ground-truth warps, robust estimation of homography, fundamental matrix and pose."""
