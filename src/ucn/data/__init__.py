"""Images, points and data sets: reading, writing, augmentation and batches.

`io` and `points` read and write single files. `pairs` defines what a data set is, `catalogue` opens one by
name, `sets/` holds the readers, `checking` and `convert` work on any of them. `loading` and `transforms` make
batches for training; `synthetic/` renders pairs from single images; `augment/` changes their appearance.
"""
