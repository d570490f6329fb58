"""Shipped weights (`table`), the weights file format (`store`), and quick checks of both (`checking`).

The names of `store` are imported when they are first used (PEP 562): it imports torch, the others do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucn.weights.checking import check_weights
from ucn.weights.table import WeightsInfo, list_weights

if TYPE_CHECKING:
    from ucn.weights.store import LoadedWeights, load_weights, save_weights
else:  # type checkers see the import above, and so report misspelt names

    def __getattr__(name):
        """Imports a name of `store` when it is first used."""
        if name not in ("LoadedWeights", "load_weights", "save_weights"):
            raise AttributeError(f"module 'ucn.weights' has no attribute '{name}'")
        from ucn.weights import store

        globals()[name] = getattr(store, name)
        return globals()[name]


__all__ = ["LoadedWeights", "WeightsInfo", "check_weights", "list_weights", "load_weights", "save_weights"]
