"""The first stage of the search on a CPU, checked against the reference one folder up."""
