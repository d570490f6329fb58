"""KITTI raw and KITTI odometry."""
