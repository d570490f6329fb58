"""Readers of data sets in their official layouts, one file each; `ucn.data.catalogue` lists them."""
