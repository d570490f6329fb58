"""The network in bands of rows, for CPUs, checked against the reference one folder up."""
