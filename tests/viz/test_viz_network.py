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
