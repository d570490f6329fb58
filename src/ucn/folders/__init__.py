"""Folders of images: features of each, pairs worth matching, matches; on one machine or many, resumable."""
