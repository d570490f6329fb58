"""Speed and memory as ratios, measured in one run: every claim about speed comes from here."""
