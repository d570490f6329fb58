"""What a run trains on: batches of pairs, step by step."""
