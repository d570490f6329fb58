"""Images, points and data sets: what is read from files and written to them."""
