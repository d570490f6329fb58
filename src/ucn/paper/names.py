"""`METHOD_NAMES`, the names of all methods that commands use, known before torch is imported."""

from __future__ import annotations

from dataclasses import replace

from ucn.features.names import BASELINE_NAMES

TRANSFER, SIAMESE = "nn-transfer", "siamese"

METHOD_NAMES = replace(
    BASELINE_NAMES,
    optional=(TRANSFER, SIAMESE, *BASELINE_NAMES.optional),
    without_features=(TRANSFER, SIAMESE),
    systems=("sift-flow", "dsp", "deepmatching"),
)
"""Names of `ucn.paper.registry.METHODS`."""
