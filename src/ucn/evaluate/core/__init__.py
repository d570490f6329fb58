"""What every evaluation shares: cache, metrics, reports."""
