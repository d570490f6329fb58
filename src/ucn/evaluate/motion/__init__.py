"""Relative pose from matches."""
