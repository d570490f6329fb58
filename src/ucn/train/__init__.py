"""Training: read `step` first."""
