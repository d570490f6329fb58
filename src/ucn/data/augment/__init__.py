"""Photometric augmentation and illumination changes of training images."""
