"""Shared by all evaluations: pairs, predictions and their cache, metrics, reports and their update."""
