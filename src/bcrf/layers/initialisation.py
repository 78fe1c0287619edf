"""Parameters of layers that loaders have created without values, as `transformers` does.

`from_pretrained` of transformers 5 builds a model on the meta device. It then replaces parameters
that the checkpoint lacks by uninitialised memory, and asks the model to initialise each module
(`_init_weights`). The method of transformers knows torch's own modules only. When it has visited a
module, it sets the attribute `_is_hf_initialized` of this module. A layer takes this as the signal
to initialise what is still without values.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..compat.private_torch import was_written

if TYPE_CHECKING:
    from .layer import ChainLayer

__all__ = ["fill_missing_parameters", "warn_of_absurd_parameters"]

ABSURD = 1e6
"""Training does not lead to such scores, but memory that was never written may hold them."""


def fill_missing_parameters(parameters: list[nn.Parameter]) -> None:
    """Draw the parameters that nobody has given values, from the uniform distribution on -0.1..0.1.

    transformers marks the parameters that it has loaded. If an `_init_weights` has written a
    parameter, the version of the parameter is no longer 0.
    """
    for parameter in parameters:
        loaded = getattr(parameter, "_is_hf_initialized", False)
        if not (parameter.is_meta or loaded or was_written(parameter)):
            nn.init.uniform_(parameter, -0.1, 0.1)


def warn_of_absurd_parameters(layer: ChainLayer) -> None:
    """Warn if a parameter holds a finite number that no training would produce; look only once."""
    layer._parameters_checked = True
    for name, parameter in layer.named_parameters(recurse=False):
        values: Tensor = parameter.detach()
        largest = values.abs().nan_to_num(0.0, 0.0, 0.0).max()
        if bool(largest > ABSURD):
            warnings.warn(
                f"{type(layer).__name__}.{name} holds the value {float(largest):.1e}; the "
                "parameters were probably never initialised or loaded: call "
                "layer.reset_parameters(), or see the guide to Hugging Face models. To forbid "
                "transitions, use the argument constraints= or -inf",
                RuntimeWarning,
                stacklevel=4,
            )
