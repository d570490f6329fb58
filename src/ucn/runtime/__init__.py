"""What code runs on: device, GPU kernels, threads."""
