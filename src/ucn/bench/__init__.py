"""`ucn bench`: speed and memory of each component as ratios to named baselines, measured in one run."""
