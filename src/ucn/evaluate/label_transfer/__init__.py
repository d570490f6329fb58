"""The evaluation `transfer`: points of labelled images carried to other images."""
