"""Models, training helpers and a pipeline for Hugging Face transformers.

Importing this package registers `CRFForTokenClassification` with the `Auto` classes.
"""

try:
    import transformers as _transformers
except ImportError as error:
    raise ImportError(
        "bcrf.huggingface needs the transformers package: pip install '.[huggingface]'"
    ) from error

from .config import CRFTokenClassificationConfig
from .model import CRFForTokenClassification, CRFTokenClassifierOutput
from .pipeline import CRFTokenClassificationPipeline, split_words
from .training import compute_metrics_for, parameter_groups
from .words import CRFDataCollator, encode_words

__all__ = [
    "CRFDataCollator",
    "CRFForTokenClassification",
    "CRFTokenClassificationConfig",
    "CRFTokenClassificationPipeline",
    "CRFTokenClassifierOutput",
    "compute_metrics_for",
    "encode_words",
    "parameter_groups",
    "split_words",
]

_transformers.AutoConfig.register(
    CRFTokenClassificationConfig.model_type, CRFTokenClassificationConfig, exist_ok=True
)
_transformers.AutoModelForTokenClassification.register(
    CRFTokenClassificationConfig, CRFForTokenClassification, exist_ok=True
)
