"""The CUDA engine: the network in CUDA graphs, checked against the reference one folder up."""
