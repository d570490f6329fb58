"""Pairs of frames of video clips."""
