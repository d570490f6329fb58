"""The systems that the 2016 paper compares with, rebuilt, and its published results; import the modules."""
