"""Points of driving scenes, by baseline."""
