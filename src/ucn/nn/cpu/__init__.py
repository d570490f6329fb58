"""The CPU engine: `encoder` runs the network in `bands` of rows, checked against ``nn/model.py``."""
