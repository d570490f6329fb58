"""CUDA kernels of the losses, checked against the reference one folder up."""
