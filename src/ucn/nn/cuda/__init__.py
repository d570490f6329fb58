"""CUDA graphs of a network, checked against the reference one folder up."""
