"""Instance normalisation in the place of batch normalisation: what gPerXAN's IN branch does alone."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["InstanceNorm", "assemble_instance_norm"]


class InstanceNorm(nn.InstanceNorm2d):
    """InstanceNorm2d with scale and shift and no running statistics; a map of one pixel passes unchanged."""

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__(channels, eps=eps, affine=True, track_running_stats=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise [B, C, H, W]."""
        return input if input.shape[-1] * input.shape[-2] == 1 else super().forward(input)


def assemble_instance_norm(model: nn.Module) -> nn.Module:
    """Put it in the place of every BatchNorm2d, in place; scale and shift are taken over."""
    found = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)]
    for name, old in found:
        new = InstanceNorm(old.num_features, eps=old.eps)
        if not old.weight.is_meta:
            new.load_state_dict({"weight": old.weight, "bias": old.bias})
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new)
    return model
