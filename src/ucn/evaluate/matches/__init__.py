"""Matches that a method chooses: matching accuracy and homographies."""
