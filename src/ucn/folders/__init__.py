"""Folders of images: features, pairs, matches of pairs, transferred labels, reconstruction."""
