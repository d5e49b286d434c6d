"""Recognize files that are not checkpoints, and explain how to use them."""

import re
import zipfile
from pathlib import Path

from detlite.files.reading import explain_not_downloaded

_USE_EXPORTED = (
    "if `detlite export` wrote it, run it with detlite.Predictor({name!r}) or `detlite predict "
    "--weights {name}`; to train or convert, use the checkpoint that it was exported from"
)
_NOT_CONVERTED = (
    "detlite has no converter for it: save the weights as a state dict of torch, or start from "
    "--weights torchvision://MaskRCNN_ResNet50_FPN_V2_Weights.COCO_V1"
)
_UNPACK = "unpack it, and name the file of weights inside"

# In order: a pattern, what the file is, and what to do. The pattern is searched in the first bytes,
# or in the names of the members of a zip archive, one per line.
_BY_START: tuple[tuple[str, str, str], ...] = (
    (r"\A\x89HDF\r\n", "an HDF5 file, such as from Keras", _NOT_CONVERTED),
    (r"\A\x08[\x01-\x20][\x12\x1a\x22\x28\x32\x3a\x42]", "an ONNX model", _USE_EXPORTED),
    (r"\A(\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!|\x28\xb5\x2f\xfd)", "a compressed archive",
     _UNPACK),
    (r"\A\s*<(\?xml|net)\b", "an XML file, such as from OpenVINO", _USE_EXPORTED),
    (r"\A[\t\n\r -~]{4,}\Z", "a text file, such as a config",
     "name the file of weights; commands that need a config take it as --config"),
)  # fmt: skip
_BY_MEMBER: tuple[tuple[str, str, str], ...] = (
    (r"(^|/)code/.*\.py$", "a TorchScript program",
     "save its weights with torch.save(torch.jit.load({name!r}).state_dict(), 'weights.pth')"),
    (r"(^|/)data\.pkl$", "", ""),  # of torch.save
    (r"(^|/)archive_format$|serialized_exported_program|(^|/)models/.*\.json$",
     "a program of torch.export", _USE_EXPORTED),
    (r"(^|/)model\.weights\.h5$", "a Keras model", _NOT_CONVERTED),
    (r"\.npy$", "an archive of numpy",
     "save its arrays with torch.save(dict(numpy.load({name!r})), 'weights.pth')"),
    (r"\.xml$|^parts\.json$|^config\.yaml$", "an OpenVINO model", _USE_EXPORTED),
    (r"", "a zip archive", _UNPACK),
)  # fmt: skip


def explain_kind(path: Path) -> str:
    """Explain what a file that is not a checkpoint is, and how to use it; "" if unknown."""
    with path.open("rb") as file:
        start = file.read(4096)
    if hint := explain_not_downloaded(start):
        return hint
    table, text = _BY_START, start.decode("latin1")
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                table, text = _BY_MEMBER, "\n".join(archive.namelist())
        except zipfile.BadZipFile:
            return ""
    for pattern, kind, advice in table:
        if re.search(pattern, text, re.DOTALL | re.MULTILINE):
            advice = advice.format(name=path.name)
            return f"it is {kind}: {advice}" if kind else ""
    return ""
