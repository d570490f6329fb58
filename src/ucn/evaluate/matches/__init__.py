"""Matches that a method keeps: precision and homographies."""
