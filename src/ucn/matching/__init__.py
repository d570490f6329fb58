"""Pair to matches: `matcher` (start here), `cells`, `scoring`, `keypoints`, `alignment`, `tracking`."""
