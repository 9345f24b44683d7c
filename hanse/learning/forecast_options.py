"""What makes a forecast a node's own: the options of personal training and of what a node serves and reports.

Part of `method_config.training` (`personal:`). They concern forecasters; other learners refuse them. No torch here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from hanse.settings import Settings

__all__ = ["MoreauOptions", "PersonalOptions"]


class MoreauOptions(Settings):
    """pFedMe (Dinh et al., NeurIPS 2020): a personal model near the node's copy of the common one."""

    strength: float = Field(15.0, gt=0)
    """Lambda: the pull of the personal model towards the node's copy."""
    inner_steps: int = Field(3, ge=1, le=100)
    """Gradient steps of the personal model on each batch."""
    outer_rate: float = Field(0.01, gt=0)
    """Eta: by `eta * lambda * (w - theta)` the copy follows the personal model after each batch."""


class PersonalOptions(Settings):
    """Personal training at a node; the same for every node of a job."""

    rebase_body: bool = True
    """Each round starts from the common model, and only the selective arrays from the node's own update. `false`: all
    else stays as the node trained it; bodies that never meet again do not average to a good model."""
    served: Literal["method", "global", "post", "received", "refined", "validated"] = "method"
    """The model that a trained node uses and is judged by: `global`, the common one; `post`, its own after training;
    `received`, the common one with the node's next update; `refined`, that one trained here once more; `validated`,
    whichever of those at hand has the lowest loss on the node's validation windows. `method`: `post` for fedgame,
    `global` for any other."""
    adapt_finetune: bool = True
    """An unseen node trains once more after it has received its update."""
    finetune: Literal["none", "head", "all"] = "none"
    """Before an evaluation, fine-tune the common model on the node's training part, and report it as `finetuned_…`:
    its selective arrays, or all. The epoch is chosen on the validation part."""
    finetune_epochs: int = Field(5, ge=1, le=1000)
    """The most epochs of fine-tuning."""
    early_stop: int = Field(0, ge=0, le=1000)
    """Training ends when the validation loss has not fallen for so many epochs, and the best epoch is kept; 0: never.
    For training alone, without a federation."""
    validation: float = Field(0.1, ge=0, le=0.5)
    """The last share of the training windows, which is never trained on; epochs are chosen by it."""
    pfedme: MoreauOptions | None = None
    """Train as pFedMe does instead of by plain steps: of `training`, the rate and the numbers of steps and rows count,
    and momentum, decay, clipping and the proximal term do not."""

    @model_validator(mode="after")
    def _one_way_to_train(self) -> PersonalOptions:
        if self.early_stop and self.pfedme is not None:
            raise ValueError("early_stop and pfedme exclude each other")
        if (self.early_stop or self.served == "validated") and not self.validation:
            raise ValueError("early_stop and served: validated need validation windows; set validation above 0")
        return self
