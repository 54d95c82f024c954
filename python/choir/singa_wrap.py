# SPDX-License-Identifier: Apache-2.0
"""The names of SINGA's `singa_wrap` that its users meet.

Raw tensors (`Tensor([2, 3])`), devices, the rendezvous id of the multi-process way
and the communicator behind DistOpt. Everything else of the C library is reached by
the other modules.
"""

from choir._comm import Communicator, NcclIdHolder
from choir._handles import BatchNormHandle, ConvHandle, PoolingHandle
from choir._raw import CTensor as Tensor
from choir._recurrent import RNNHandle as CudnnRNNHandle
from choir.device import Device

__all__ = [
    "BatchNormHandle",
    "Communicator",
    "ConvHandle",
    "CudnnRNNHandle",
    "Device",
    "NcclIdHolder",
    "PoolingHandle",
    "Tensor",
]
