"""The CPU engine: the network in bands of rows, checked against the reference one folder up."""
