"""Data sets with annotated object keypoints: the same part on another instance."""
