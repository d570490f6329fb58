"""Coordinates, sampling and truth by geometry."""
