"""CUDA kernels of the search, checked against the reference one folder up."""
