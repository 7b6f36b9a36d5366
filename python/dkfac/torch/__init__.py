"""dkfac for PyTorch.

    import dkfac.torch as dkfac
    kfac = dkfac.attach(model, optimizer)
"""
from .. import (CommError, DataError, DeviceError, Error, InvalidArgument, IoError, MissingInput, NumericError,
                OutOfMemory, build_info, version)
from ._attach import Attached, attach
from ._compat import AllreduceMethod, AssignmentStrategy, ComputeMethod, DistributedStrategy, KFACPreconditioner
from ._distributed import Comm
from ._full import FullState
from ._model import ModelPreconditioner
from ._options import Options
from ._optimizers import KFAC, LARS
from ._schedules import LambdaParamScheduler, exp_decay_factor_averaging

__all__ = ["AllreduceMethod", "AssignmentStrategy", "Attached", "Comm", "CommError", "ComputeMethod", "DataError",
           "DeviceError", "DistributedStrategy", "Error", "FullState", "InvalidArgument", "IoError", "KFAC",
           "KFACPreconditioner", "LARS", "LambdaParamScheduler", "MissingInput", "ModelPreconditioner", "NumericError",
           "Options", "OutOfMemory", "attach", "build_info", "exp_decay_factor_averaging", "version"]
