from ucn.config import ModelConfig
from ucn.nn import build_model
from ucn.nn.summary import list_layers
from ucn.viz.network import draw_network


def test_a_wider_picture_for_more_blocks() -> None:
    plain = list_layers(build_model(ModelConfig()), (64, 96))
    bare = list_layers(build_model(ModelConfig(dim=None, head_norm="none", transformer="none")), (64, 96))
    one, other = draw_network(plain, "plain"), draw_network(bare, "bare")
    assert one.dtype == other.dtype == "uint8"
    assert one.shape[1] - other.shape[1] == 3 * 118  # norm, projection and transformer
    assert (one != draw_network(plain, "another title")).any()
    assert (one == draw_network(plain, "plain")).all()


def test_the_semantic_level_is_drawn_as_its_blocks_are() -> None:
    layers = list_layers(build_model(ModelConfig(transformer="none", semantic_dim=16)), (64, 96))
    drawn = draw_network(layers, "semantic")
    blocks = list(dict.fromkeys(layer.block for layer in layers))
    own = [block for block in blocks if block.startswith("semantic.")]
    assert len(own) == 10 and blocks[-2:] == ["semantic", "join"]

    def colour_of(block: str) -> list[int]:
        left = 24 + 118 * blocks.index(block)
        return list(drawn[24 + 2 * 17 + 210 - 5, left + 5])  # the front of its slab

    assert colour_of("semantic.inception_3a") == colour_of("inception_3a") != colour_of("conv1")
    assert colour_of("join") == colour_of("normalise")
