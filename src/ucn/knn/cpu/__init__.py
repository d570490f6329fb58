"""The search on CPUs with bfloat16 units, checked against the reference one folder up."""
