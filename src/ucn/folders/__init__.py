"""Folders of images: features, pairs, matches of pairs, reconstruction; in this process or on Ray."""
