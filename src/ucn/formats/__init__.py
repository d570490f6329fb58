"""Features, matches, networks and weights in the formats of other tools: hloc, COLMAP, ONNX, kornia, hub."""
