"""Image classifiers as registered models (entry points `hanse.models`): `small_cnn`, `resnet18`, `resnet50`.

A job names one under `model:` and configures it under `method_config.model`. torch is imported when a network is
built, not before.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from hanse.errors import OperatorError
from hanse.learning.networks.building import initial_state, no_torch
from hanse.models import Role
from hanse.settings import Settings

if TYPE_CHECKING:
    from torch import nn

__all__ = ["WEIGHTS_VARIABLE", "ImageModel", "ImageModelConfig", "ResNet18", "ResNet50", "SmallCNN"]

WEIGHTS_VARIABLE = "HANSE_WEIGHTS"


class ImageModelConfig(Settings):
    """`method_config.model` of an image classifier."""

    classes: int = Field(ge=2, le=100_000)
    """Outputs of the classifier; the same everywhere, also at a node that lacks some of them."""
    channels: Literal[1, 3] = 3
    """1: grey, 3: colour. Nodes convert their images."""
    size: int = Field(224, ge=8, le=4096)
    """Images are scaled to squares of this side at the nodes."""
    width: int = Field(64, ge=1, le=1024)
    """Feature maps of the first layer; everything else follows."""
    stem: Literal["large", "small"] = "large"
    """ResNet only. `small`: for images of about 32 pixels (see `hanse.learning.networks.resnet`)."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Subtracted from pixels in 0 to 1, by channel. The default is ImageNet's; one number counts for all."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Divides them, by channel."""
    norm: Literal["batch", "xan", "instance"] = "batch"
    """The norm layers. `xan`: batch and instance normalisation mixed, as in gPerXAN."""
    stages: tuple[str, ...] = ()
    """Put XAN only into these stages (`layer1`); everywhere when left out, as published."""
    init_scores: tuple[float, float] = (1.0, 1.0)
    """First scores (s_b, s_n) of XAN. (4, 0) starts near a pretrained network."""
    copy_affine: Literal["both", "batch_only", "neither"] = "both"
    """Where pretrained scale and shift of norm layers go in XAN."""
    personal_batch_norm: bool = False
    """Batch normalisation outside XAN stays with the node (FedBN, Li et al., ICLR 2021); else it is averaged."""
    score_sharing: Literal["code", "global", "personal"] = "code"
    """Scores of XAN. `code`: that of BN belongs to the node and that of IN to all, as in the published code."""
    bn_upload: Literal["average_for_unseen", "never"] = "average_for_unseen"
    """What belongs to the node: `average_for_unseen`: it is sent, averaged, and given to unseen nodes alone, as in the
    published code; `never`: it does not leave the node."""
    weights: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*\.safetensors)?$")
    """A file of pretrained weights with torchvision's names, in the folder that the variable HANSE_WEIGHTS names, at
    the aggregator and at every node. A classifier of another size is left out. Empty: random weights from the seed."""
    weights_sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of that file, so that everybody starts from the same."""

    @model_validator(mode="after")
    def _fits(self) -> ImageModelConfig:
        if any(len(each) not in (1, 3) for each in (self.mean, self.std)) or min(self.std) <= 0:
            raise ValueError("mean and std need one or three numbers, and those of std must be positive")
        if bool(self.weights) != bool(self.weights_sha256):
            raise ValueError("weights and weights_sha256 belong together")
        if self.stages and self.norm != "xan":
            raise ValueError("stages is for norm: xan")
        return self


class SmallCNNConfig(ImageModelConfig):
    """`method_config.model` of `small_cnn`: small grey images unless said otherwise."""

    channels: Literal[1, 3] = 1
    """1: grey, 3: colour."""
    size: int = Field(28, ge=8, le=4096)
    """Images are scaled to squares of this side."""
    width: int = Field(16, ge=1, le=1024)
    """Feature maps of the first layer."""
    mean: tuple[float, ...] = (0.5,)
    """Subtracted from pixels in 0 to 1."""
    std: tuple[float, ...] = (0.5,)
    """Divides them."""


class ImageModel:
    """A registered image classifier: its last layer is `fc`, and `features` is what that layer sees."""

    Config: ClassVar[type[BaseModel]] = ImageModelConfig
    classifier: ClassVar[str] = "fc"
    network: ClassVar[str] = ""

    def __init__(self, config: ImageModelConfig) -> None:
        self.config = config

    def build(self) -> nn.Module:
        """The network, with arbitrary weights.

        Raises:
            OperatorError: torch is not installed here, or a stage that the network does not have.
        """
        try:
            from hanse.learning.networks import norms, resnet, small_cnn
            from hanse.learning.xan import assemble_xan
        except ImportError as error:
            raise no_torch(error) from error
        config = self.config
        shared = {"classes": config.classes, "channels": config.channels, "width": config.width}
        module: nn.Module
        if self.network == "small_cnn":
            module = small_cnn.SmallCNN(**shared)
        else:
            maker = resnet.resnet18 if self.network == "resnet18" else resnet.resnet50
            module = maker(**shared, stem=config.stem)
        if config.weights:
            load_weights(module, config.weights, config.weights_sha256, classifier=self.classifier)
        if config.norm == "instance":
            return norms.assemble_instance_norm(module)
        if config.norm == "xan":
            scores = (config.init_scores[0], config.init_scores[1])
            return assemble_xan(module, stages=config.stages, init_scores=scores, copy_affine=config.copy_affine)
        return module

    def initial_state(self, seed: int) -> Mapping[str, NDArray[Any]]:
        """The whole state before training; see `building.initial_state`."""
        return initial_state(self.build, seed)

    def roles(self) -> Mapping[str, Role]:
        """The role of every array of the state."""
        try:
            import torch

            from hanse.learning.networks.roles import network_roles
        except ImportError as error:
            raise no_torch(error) from error
        config = self.config
        bare = type(self)(config.model_copy(update={"weights": "", "weights_sha256": ""}))
        with torch.device("meta"):
            module = bare.build()
        return network_roles(
            module,
            personal_batch_norm=config.personal_batch_norm,
            score_sharing=config.score_sharing,
            bn_upload=config.bn_upload,
        )


class SmallCNN(ImageModel):
    """Three convolutions, for small images."""

    Config = SmallCNNConfig
    network = "small_cnn"


class ResNet18(ImageModel):
    """ResNet-18 with torchvision's names."""

    network = "resnet18"


class ResNet50(ImageModel):
    """ResNet-50 with torchvision's names."""

    network = "resnet50"


def load_weights(module: nn.Module, name: str, sha256: str, *, classifier: str) -> None:
    """Load pretrained weights into a network with batch normalisation.

    Raises:
        OperatorError: no such file, another digest, or arrays that do not fit; the sentence names them.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    folder = os.environ.get(WEIGHTS_VARIABLE, "")
    path = Path(folder) / name
    if not folder or not path.is_file():
        raise OperatorError(
            f"The pretrained weights '{name}' are not here ({WEIGHTS_VARIABLE} is '{folder}').",
            remedy=f"Put the file into a folder and name that in {WEIGHTS_VARIABLE}, at the aggregator and every node.",
            code="WEIGHTS_MISSING",
        )
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise OperatorError(
            f"The file {path} is not the one that the job means: its SHA-256 differs.",
            remedy="Fetch the same file as the other nodes.",
            code="WEIGHTS_DIFFER",
        )
    try:
        found = load(data)
    except (SafetensorError, ValueError) as error:
        raise OperatorError(f"{path} is not a safetensors file: {error}.", code="WEIGHTS_UNREADABLE") from error
    own = module.state_dict()
    head = {key for key in own if key.startswith(f"{classifier}.")}
    fitting = {key: value for key, value in found.items() if key in own and value.shape == own[key].shape}
    missing = sorted(set(own) - set(fitting) - head - {k for k in own if k.endswith("num_batches_tracked")})
    if missing:
        raise OperatorError(
            f"{path} does not fit the network: '{missing[0]}' is missing or of another shape ({len(missing)} in all).",
            remedy="Use weights of the same architecture, width and stem, with torchvision's names.",
            code="WEIGHTS_DO_NOT_FIT",
        )
    module.load_state_dict(own | fitting)
