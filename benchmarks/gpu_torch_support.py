"""Common functions of the PyTorch programs for a CUDA device."""
import json


def torch_on(device):
    """The module torch, or None with a message if it or the device is missing: exit code 77."""
    try:
        import torch
    except ImportError:
        print("SKIPPED: this interpreter has no PyTorch")
        return None
    if device == "cuda" and not torch.cuda.is_available():
        print("SKIPPED: PyTorch sees no CUDA device")
        return None
    return torch


def report(result, path):
    """Prints one JSON object, and writes it to the file `path` if one is given."""
    text = json.dumps(result)
    print(text)
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
