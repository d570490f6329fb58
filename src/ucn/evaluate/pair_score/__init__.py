"""Whether two images match at all."""
