"""Folders of images: `extraction`, `pairing`, `pair_matching`, `reconstruction`; local or on Ray."""
