"""Features, matches, networks and models in the formats of other tools: hloc, COLMAP, ONNX."""
