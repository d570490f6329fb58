"""Given points of image 0 found in image 1: PCK and end-point error."""
