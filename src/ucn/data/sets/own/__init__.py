"""Pairs and points of the user's own."""
