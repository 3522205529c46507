"""A list of modules is torch's, by another type."""

from torch import nn

from sparing.nn.listed import Listed


def test_it_names_and_orders_its_modules_as_torch_does() -> None:
    layers = [nn.Linear(2, 3), nn.Linear(3, 4)]
    ours, torchs = Listed(layers), nn.ModuleList(layers)
    assert list(ours) == layers
    assert list(ours.state_dict()) == list(torchs.state_dict())
    assert [layer.out_features for layer in ours] == [3, 4]
