"""The matching stage as CUDA graphs, checked against `Matcher` one folder up."""
