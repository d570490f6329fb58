"""Given points looked up in the other image: PCK and end-point error."""
