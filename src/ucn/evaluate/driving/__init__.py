"""Points of driving scenes, by camera baseline and semantic class."""
