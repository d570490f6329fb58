"""Features to compare the network with, and the registry of all methods; import the modules themselves."""
