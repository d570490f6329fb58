"""From a pair of images to matches: start with `matcher`, then `cells`; `transfer` carries labels."""
