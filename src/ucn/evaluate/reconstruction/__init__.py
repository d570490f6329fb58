"""Sparse reconstructions of scenes with known cameras."""
