"""Ways in from other libraries: kornia's local features, and weights on the Hugging Face hub."""
