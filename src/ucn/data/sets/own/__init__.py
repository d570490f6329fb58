"""Your own pairs and points, in documented CSV or JSON Lines files."""
