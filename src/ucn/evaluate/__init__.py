"""Benchmarks in two stages: predictions, kept on disk, and figures made from them; `run` does both."""
