"""Training data: batches.py gives each step its batch, from the sources that a recipe lists.

source.py is what a source implements; data_sets.py and photographs.py are the two kinds of them.
"""
