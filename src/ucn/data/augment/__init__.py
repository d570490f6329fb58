"""Photometric augmentation of training images."""
