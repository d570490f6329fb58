"""Data sets with camera poses and depth or 3D points."""
