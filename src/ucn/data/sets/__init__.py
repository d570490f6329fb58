"""Readers of data sets in their official layouts, one module each.

How to add a data set:

1. Choose the package by the kind of ground truth, and derive from its base class: ``flow/`` for dense flow,
   disparity or homographies (`dense_pairs.DenseData`); ``posed/`` for camera poses with depth or 3D points
   (`posed_pairs.PosedData`, and `SequenceData` for video sequences); ``semantic/`` for annotated object
   keypoints (`keypoint_pairs.KeypointData`); ``kitti/`` for KITTI recordings. For anything else, derive from
   `ucn.data.pairs.PairData`.
2. Describe it in `ucn.data.descriptions`, and write one module with
   ``open_folder(folder, split, *, option=default) -> PairData``. The docstring of ``open_folder`` documents
   the options for users. `layout.find_root` finds the folder; `ucn.files` reads text and binary files safely.
   Faulty entries go to `problems`, they do not raise.
3. Name the module in ``_MODULES`` of `ucn.data.catalogue`.
4. Test it beside the others in ``tests/data/sets/``: exact correspondences of a tiny folder written by the
   test, every error, and ``ucn data check`` on it.

Data of your own needs no reader: ``own/`` reads a folder with ``pairs.csv``, ``video/`` your videos, and
`synthetic` any folder of images.
"""
