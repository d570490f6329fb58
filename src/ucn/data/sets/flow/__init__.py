"""Data sets with dense ground truth: optical flow and disparity."""
