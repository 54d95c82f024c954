# SPDX-License-Identifier: Apache-2.0
"""The names of SINGA's `singa_wrap` that its users meet.

Raw tensors (`Tensor([2, 3])`), devices, the rendezvous id of the multi-process way
and the communicator behind DistOpt. Everything else of the C library is reached by
the other modules.
"""

from choir import tensor
from choir._comm import Communicator, NcclIdHolder
from choir._handles import BatchNormHandle, ConvHandle, PoolingHandle
from choir._raw import CTensor as Tensor
from choir._recurrent import RNNHandle as CudnnRNNHandle
from choir.device import Device, get_num_gpus

# Element types; SINGA's others do not exist here.
kFloat32, kFloat16, kDouble = tensor.float32, tensor.float16, tensor.float64
kInt, kUChar = tensor.int32, tensor.uint8

# Communicators of several processes are in every build.
USE_DIST = True


def __getattr__(name: str):
    # Scripts ask it before they make a GPU's device; a look at the GPUs, so not
    # when the package is imported.
    if name == "USE_CUDA":
        return get_num_gpus() > 0
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BatchNormHandle",
    "Communicator",
    "ConvHandle",
    "CudnnRNNHandle",
    "Device",
    "NcclIdHolder",
    "PoolingHandle",
    "Tensor",
    "USE_DIST",
    "kDouble",
    "kFloat16",
    "kFloat32",
    "kInt",
    "kUChar",
]
