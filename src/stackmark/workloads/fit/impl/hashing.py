"""Random numbers that are functions of whole numbers (a seed, an index), and the SHA-256 of tensors.

Generated data are made of these: any sample can be made without the others, and all machines make the same ones.
"""

import ctypes
import hashlib
import math

import torch
from torch import Tensor


def hashed(*parts: Tensor | int) -> Tensor:
    """Return 32 random bits for each combination of whole numbers below 2³², as int64.

    The constants are below 2³¹, so that no product overflows: the same bits on every device.
    """
    bits = torch.zeros((), dtype=torch.long)
    for part in parts:
        bits = (bits.to(part.device) if isinstance(part, Tensor) else bits) ^ part
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            bits = ((bits ^ (bits >> shift)) * factor) & 0xFFFFFFFF
        bits = bits ^ (bits >> 15)
    return bits


def uniform(*parts: Tensor | int) -> Tensor:
    """Return numbers between 0 and 1, neither of them included, by a hash."""
    return (hashed(*parts).double() + 0.5) / 2**32


def normal(*parts: Tensor | int) -> Tensor:
    """Return normally distributed numbers by a hash (Box and Muller)."""
    return (-2 * uniform(*parts, 1).log()).sqrt() * (2 * math.pi * uniform(*parts, 2)).cos()


def sha256_of(kind: str, *tensors: Tensor) -> str:
    """Return the SHA-256 of a name and the bytes of tensors on the CPU."""
    digest = hashlib.sha256(kind.encode())
    for tensor in tensors:
        whole = tensor.contiguous()
        # Without numpy, which an image may lack, a tensor's bytes are read at their address.
        size = whole.element_size() * whole.numel()
        digest.update((ctypes.c_char * size).from_address(whole.data_ptr()) if size else b"")
    return digest.hexdigest()
