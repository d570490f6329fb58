"""CUDA kernels of sub-cell and photometric refinement, checked against the reference one folder up."""
