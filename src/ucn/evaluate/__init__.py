"""Benchmarks in two stages: cached predictions, then scores and a report; `evaluations` lists all."""
