"""Match two images, print the best matches, and draw them all.

    python examples/match_two_images.py [IMAGE0 IMAGE1]

Without arguments it matches the bundled pair of photographs.
"""

import sys

import numpy as np

import ucn
from ucn.data.example import example_pair
from ucn.data.io import write_image
from ucn.viz import draw_matches


def main() -> None:
    """Matches the two images named on the command line, or the bundled pair."""
    if len(sys.argv) == 3:
        image0, image1 = sys.argv[1:]
    else:
        pair = example_pair()
        image0, image1 = str(pair.image0_path), str(pair.image1_path)

    matcher = ucn.Matcher.from_pretrained("geometric")
    matches = matcher.match(image0, image1)

    print(f"{len(matches)} matches, pair score {matches.pair_score:.3f}")
    best = matches.select(np.arange(min(10, len(matches))))  # sorted by score, best first
    for (x0, y0), (x1, y1), score in zip(best.points0, best.points1, best.scores, strict=True):
        print(f"({x0:7.2f}, {y0:7.2f})  ->  ({x1:7.2f}, {y1:7.2f})   score {score:.2f}")

    write_image("matches.png", draw_matches(image0, image1, matches), overwrite=True)
    print("written: matches.png")


if __name__ == "__main__":
    main()
