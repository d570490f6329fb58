"""Sparse reconstruction against ground truth."""
