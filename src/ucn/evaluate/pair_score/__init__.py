"""Matching and non-matching pairs separated by the pair score."""
