"""Who is personal and who is global: the role of every array of a network, as explicit sets of names.

gPerXAN: the BN branch of XAN belongs to the node, the IN branch to everybody [paper, official code]. The official
filter is a substring test on names, by which the BN score is personal as well and the IN score is not; here names
come from the layers themselves, and the score is an option (`score_sharing`).
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from hanse.learning.xan import XAN
from hanse.models import Role

__all__ = ["BnUpload", "ScoreSharing", "network_roles"]

ScoreSharing = Literal["code", "global", "personal"]
BnUpload = Literal["average_for_unseen", "never"]

_COUNTER = "num_batches_tracked"


def network_roles(
    module: nn.Module, *, personal_batch_norm: bool, score_sharing: ScoreSharing, bn_upload: BnUpload
) -> dict[str, Role]:
    """The role of every entry of `module.state_dict()`, in its order.

    Entries that belong to the node are `evaluation_only` with `bn_upload: average_for_unseen` (they leave, and their
    average goes to unseen nodes) and `personal` with `never`. Counters of batches are personal in any case: nothing
    is computed from them, and an integer has no average. `personal_batch_norm` concerns BatchNorm2d outside XAN
    (FedBN); within XAN it is always the node's own.
    """
    own = Role.EVALUATION_ONLY if bn_upload == "average_for_unseen" else Role.PERSONAL
    roles = dict.fromkeys(module.state_dict(), Role.GLOBAL)
    for name, layer in module.named_modules():
        start = f"{name}." if name else ""
        if isinstance(layer, XAN):
            roles[f"{start}score_batchnorm"] = Role.GLOBAL if score_sharing == "global" else own
            roles[f"{start}score_instancenorm"] = own if score_sharing == "personal" else Role.GLOBAL
        elif isinstance(layer, nn.BatchNorm2d):
            within_xan = isinstance(module.get_submodule(name.rpartition(".")[0]), XAN)
            mine = within_xan or personal_batch_norm
            for entry in layer.state_dict():
                roles[start + entry] = Role.PERSONAL if entry == _COUNTER else own if mine else Role.GLOBAL
    return roles
