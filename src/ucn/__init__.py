"""Which point in one image is which point in another."""
