"""KITTI raw drives and odometry sequences."""
