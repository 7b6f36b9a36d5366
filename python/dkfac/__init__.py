"""dkfac: distributed K-FAC. `dkfac.torch` attaches it to a PyTorch model; this module has what needs no PyTorch."""
from ._comm import Comm
from ._library import (CommError, DataError, DeviceError, Error, InvalidArgument, IoError, MissingInput, NumericError,
                       OutOfMemory, build_info, version)

__all__ = ["Comm", "CommError", "DataError", "DeviceError", "Error", "InvalidArgument", "IoError", "MissingInput",
           "NumericError", "OutOfMemory", "build_info", "version"]
