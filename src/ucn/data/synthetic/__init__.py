"""Synthetic image pairs with exact ground truth, rendered from single images on any device."""

from ucn.data.synthetic.bank import ImageBank, list_images
from ucn.data.synthetic.generator import make_pairs

__all__ = ["ImageBank", "list_images", "make_pairs"]
