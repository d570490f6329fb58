"""Devices, availability of CUDA kernels, and CPU threads."""
