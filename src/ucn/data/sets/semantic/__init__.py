"""Data sets of object parts: the same keypoint on another instance."""
