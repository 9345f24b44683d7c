"""Networks by name: torchvision's names, roles that partition the state, and the same weights for the same seed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hanse.errors import OperatorError
from hanse.learning.networks.image_models import WEIGHTS_VARIABLE, ImageModel
from hanse.learning.xan import xan_layers
from hanse.models import Role, load_model

BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def model(name: str = "resnet18", **config: Any) -> ImageModel:
    narrow = {"classes": 7, "width": 4, **config}
    found = load_model(name, narrow)
    assert isinstance(found, ImageModel)
    return found


def torchvision_names(depths: tuple[int, ...], convolutions: int, downsampled: tuple[int, ...]) -> list[str]:
    """The names of torchvision's `resnet*().state_dict()`, in its order, written down from its layout."""
    names = ["conv1.weight", *(f"bn1.{entry}" for entry in BN)]
    for stage, depth in enumerate(depths, start=1):
        for block in range(depth):
            start = f"layer{stage}.{block}"
            for i in range(1, convolutions + 1):
                names += [f"{start}.conv{i}.weight", *(f"{start}.bn{i}.{entry}" for entry in BN)]
            if block == 0 and stage in downsampled:
                names += [f"{start}.downsample.0.weight", *(f"{start}.downsample.1.{entry}" for entry in BN)]
    return [*names, "fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("name", "names", "parameters"),
    [
        ("resnet18", torchvision_names((2, 2, 2, 2), 2, (2, 3, 4)), 11_689_512),
        ("resnet50", torchvision_names((3, 4, 6, 3), 3, (1, 2, 3, 4)), 25_557_032),
    ],
)
def test_names_and_sizes_are_torchvisions(name: str, names: list[str], parameters: int) -> None:
    with torch.device("meta"):
        network = model(name, classes=1000, width=64).build()
    assert list(network.state_dict()) == names
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    shapes = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer4.0.downsample.0.weight"] == ((512, 256, 1, 1) if name == "resnet18" else (2048, 1024, 1, 1))


def test_resnet50_has_53_norm_layers_of_26560_channels_that_become_xan() -> None:
    with torch.device("meta"):
        network = model("resnet50", classes=7, width=64, norm="xan").build()
    layers = xan_layers(network)
    assert len(layers) == 53
    assert sum(layer.batchnorm.num_features for layer in layers.values()) == 26_560
    assert len(network.state_dict()) > 400


CONFIGS: list[dict[str, Any]] = [
    {"norm": norm, "score_sharing": sharing, "bn_upload": upload, "personal_batch_norm": personal, "stages": stages}
    for norm in ("batch", "xan", "instance")
    for sharing in ("code", "global", "personal")
    for upload in ("average_for_unseen", "never")
    for personal in (False, True)
    for stages in ((), ("layer1",))
    if norm == "xan" or (sharing == "code" and not stages)
]


@pytest.mark.parametrize("config", CONFIGS)
def test_roles_partition_the_whole_state(config: dict[str, Any]) -> None:
    found = model(**config)
    state, roles = found.initial_state(3), found.roles()
    assert list(roles) == list(state)
    assert all(roles[name] is Role.PERSONAL for name in state if state[name].dtype == np.int64)
    if config["bn_upload"] == "never":
        assert Role.EVALUATION_ONLY not in roles.values()


def names_of(role: Role, **config: Any) -> set[str]:
    return {name for name, each in model("small_cnn", **config).roles().items() if each is role}


def entries(layer: str, *names: str) -> set[str]:
    return {f"bn{i}.{layer}{'.' if layer else ''}{name}" for i in (1, 2, 3) for name in names}


STATISTICS = ("weight", "bias", "running_mean", "running_var")
CONVOLUTIONS = {"conv1.weight", "conv2.weight", "conv3.weight", "fc.weight", "fc.bias"}


def test_xan_shares_instance_norm_and_keeps_batch_norm_as_in_the_published_code() -> None:
    bn, affine = entries("batchnorm", *STATISTICS), entries("instancenorm", "weight", "bias")
    counters = entries("batchnorm", "num_batches_tracked")
    score_b, score_i = entries("", "score_batchnorm"), entries("", "score_instancenorm")
    assert names_of(Role.GLOBAL, norm="xan") == CONVOLUTIONS | affine | score_i
    assert names_of(Role.EVALUATION_ONLY, norm="xan") == bn | score_b
    assert names_of(Role.PERSONAL, norm="xan") == counters
    assert names_of(Role.PERSONAL, norm="xan", bn_upload="never") == bn | score_b | counters
    assert names_of(Role.GLOBAL, norm="xan", score_sharing="global") == CONVOLUTIONS | affine | score_i | score_b
    own = names_of(Role.EVALUATION_ONLY, norm="xan", score_sharing="personal")
    assert own == bn | score_b | score_i


def test_batch_norm_is_averaged_or_the_nodes_own_as_in_fedbn() -> None:
    counters = entries("", "num_batches_tracked")
    assert names_of(Role.GLOBAL) == CONVOLUTIONS | entries("", *STATISTICS)
    assert names_of(Role.PERSONAL) == counters
    assert names_of(Role.GLOBAL, personal_batch_norm=True) == CONVOLUTIONS
    assert names_of(Role.EVALUATION_ONLY, personal_batch_norm=True) == entries("", *STATISTICS)
    assert names_of(Role.GLOBAL, norm="instance") == CONVOLUTIONS | entries("", "weight", "bias")


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "resnet50"])
@pytest.mark.parametrize("norm", ["batch", "xan", "instance"])
def test_networks_classify_images_and_repeat_by_seed(name: str, norm: str) -> None:
    found = model(name, norm=norm, channels=1, size=28, stem="small", width=2)
    first, again, other = found.initial_state(1), found.initial_state(1), found.initial_state(2)
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)
    network = found.build()
    network.load_state_dict({key: torch.from_numpy(value) for key, value in first.items()})
    x = torch.randn(2, 1, 28, 28)
    assert network(x).shape == (2, 7)
    assert torch.equal(network.fc(network.features(x)), network(x))  # type: ignore[operator]


def test_making_a_state_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model().initial_state(9)
    assert torch.equal(torch.rand(3), expected)


def test_pretrained_weights_of_torchvisions_names_load_but_for_a_classifier_of_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = model(classes=11).build()
    torch.nn.init.uniform_(source.get_parameter("layer1.0.bn1.weight"))
    save_file(source.state_dict(), tmp_path / "r.safetensors")
    digest = hashlib.sha256((tmp_path / "r.safetensors").read_bytes()).hexdigest()
    told = {"weights": "r.safetensors", "weights_sha256": digest, "norm": "xan"}
    monkeypatch.delenv(WEIGHTS_VARIABLE, raising=False)
    with pytest.raises(OperatorError, match=WEIGHTS_VARIABLE):
        model(**told).initial_state(0)
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path))
    state = model(**told).initial_state(0)
    expected = source.state_dict()
    for name in ("conv1.weight", "layer4.1.conv2.weight"):
        assert np.array_equal(state[name], expected[name].numpy())
    for branch in ("batchnorm", "instancenorm"):
        assert np.array_equal(state[f"layer1.0.bn1.{branch}.weight"], expected["layer1.0.bn1.weight"].numpy())
    assert state["fc.weight"].shape[0] == 7
    with pytest.raises(OperatorError, match="SHA-256"):
        model(**{**told, "weights_sha256": "0" * 64}).initial_state(0)
    with pytest.raises(OperatorError, match="does not fit the network"):
        model(**told, width=8).initial_state(0)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"classes": 1}, "classes"),
        ({"stages": ["layer1"]}, "stages is for norm: xan"),
        ({"weights": "../x.safetensors"}, "weights"),
        ({"weights": "x.safetensors"}, "belong together"),
        ({"std": [0.0]}, "must be positive"),
        ({"depth": 3}, "unknown key 'depth'"),
    ],
)
def test_wrong_configurations_are_refused_by_key(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OperatorError, match=sentence):
        model(**config)
