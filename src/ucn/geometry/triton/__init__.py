"""CUDA kernels of geometry, checked against the reference one folder up."""
