"""Pairs of frames of your own videos, with tracked correspondences."""
