"""Export a tagger to an ONNX file, which runs without torch and without bcrf."""

from .comparison import Agreement
from .onnx_file import ExportedFile, export_onnx
from .tagger_graph import ExportError

__all__ = ["Agreement", "ExportError", "ExportedFile", "export_onnx"]
