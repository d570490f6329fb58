"""Image pairs with exact truth, made from photographs on whatever device holds them."""

from ucn.data.synthetic.bank import ImageBank, list_images
from ucn.data.synthetic.generator import make_pairs

__all__ = ["ImageBank", "list_images", "make_pairs"]
