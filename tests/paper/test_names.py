"""Names that are known before torch is imported are those of the registries."""

from dataclasses import fields

import pytest

from ucn.features.baselines import BASELINES
from ucn.features.lightglue import LIGHTGLUE
from ucn.features.names import BASELINE_NAMES, MethodNames
from ucn.features.registry import Registry
from ucn.paper.names import METHOD_NAMES
from ucn.paper.registry import METHODS
from ucn.weights import list_weights


@pytest.mark.parametrize(
    ("names", "registry"),
    [
        pytest.param(BASELINE_NAMES, BASELINES, id="features.names.BASELINE_NAMES"),
        pytest.param(METHOD_NAMES, METHODS, id="paper.names.METHOD_NAMES"),
    ],
)
def test_names_are_those_of_the_registry(names: MethodNames, registry: Registry) -> None:
    for field in fields(MethodNames):
        assert tuple(getattr(names, field.name)) == tuple(getattr(registry, field.name)), field.name


def test_lists() -> None:
    shipped = tuple(info.name for info in list_weights())
    assert METHOD_NAMES.list_names() == METHODS.list_names()
    assert METHOD_NAMES.list_names("sparse") == METHODS.list_names("sparse")
    assert METHOD_NAMES.list_features()[: len(shipped)] == shipped
    assert set(LIGHTGLUE) <= set(METHOD_NAMES.sparse)


def test_has_name() -> None:
    assert METHOD_NAMES.has_name("daisy+dsp") and not METHOD_NAMES.has_name("daisy+dsp", kind="sparse")
    assert METHOD_NAMES.has_name("sift-ratio", kind="sparse") and not METHOD_NAMES.has_name("sift-ratio")
    assert METHOD_NAMES.has_name("mine+nearest", others=["mine"]) and not METHOD_NAMES.has_name("mine")
    assert METHOD_NAMES.has_name("x.safetensors", needs_features=True)
    assert not METHOD_NAMES.has_name("dsp", needs_features=True)
