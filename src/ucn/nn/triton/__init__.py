"""Triton kernels of the network's layers, checked against the reference one folder up."""
