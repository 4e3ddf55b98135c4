"""Reference of `disagg_kernels.dense`."""

import functools

import torch
import torch.nn.functional as functional

# Beyond this inner size the CPU library cuts the sum at places that depend on the other sizes;
# cutting it here, always alike, keeps a row independent of how many rows there are.
INNER_TILE = 512

# The vectorised sigmoid and its relatives round the last few elements of a tensor, those past the
# last full vector, differently. Row counts are multiples of ROW_MULTIPLE, so tensors whose width
# times ROW_MULTIPLE is a multiple of VECTOR_ELEMENTS have no such rest.
ROW_MULTIPLE = 8
VECTOR_ELEMENTS = 32


def has_no_rest(width: int) -> bool:
    """Whether [ROW_MULTIPLE * k, width] elements always fill whole vectors."""
    return width * ROW_MULTIPLE % VECTOR_ELEMENTS == 0


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Logistic function whose value at a row does not depend on the number of rows."""
    if has_no_rest(x.shape[-1]):
        return torch.sigmoid(x)
    return torch.exp(-x).add_(1.0).reciprocal_()


def softplus(x: torch.Tensor) -> torch.Tensor:
    """`log(1 + exp(x))` whose value at a row does not depend on the number of rows."""
    if has_no_rest(x.shape[-1]):
        return functional.softplus(x)
    return torch.exp(-x.abs()).log1p_().add_(x.clamp(min=0.0))


@functools.cache
def constant(value: float) -> torch.Tensor:
    """A number as a float32 tensor: operations with plain numbers convert them on every call."""
    return torch.tensor(value, dtype=torch.float32)


def inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Returns `rsqrt(mean(x^2, last axis) + eps)` with the last axis kept; x is float32."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(constant(eps), norm, norm, value=1.0 / x.shape[-1]).rsqrt_()


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """See `disagg_kernels.dense.rms_norm`."""
    wide = x if x.dtype is torch.float32 else x.float()
    scaled = wide * inverse_rms(wide, eps)
    if weight is not None:
        scaled.mul_(weight)
    return scaled if x.dtype is torch.float32 else scaled.to(x.dtype)


def apply_rope(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """See `disagg_kernels.dense.apply_rope`."""
    pairs = rotation.shape[1]
    tail = x[..., x.shape[-1] - 2 * pairs :].unflatten(-1, (pairs, 2))
    torch.view_as_complex(tail).mul_(rotation[:, None, :])
    return x


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See `disagg_kernels.dense.linear`."""
    inner = weight.shape[0]
    if inner <= INNER_TILE:
        return torch.mm(x, weight)
    total = torch.mm(x[:, :INNER_TILE], weight[:INNER_TILE])
    for begin in range(INNER_TILE, inner, INNER_TILE):
        end = min(begin + INNER_TILE, inner)
        total += torch.mm(x[:, begin:end], weight[begin:end])
    return total


def batched_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[batch, rows, in] times [batch, in, out], cut like `linear`."""
    inner = weight.shape[1]
    if inner <= INNER_TILE:
        return torch.bmm(x, weight)
    total = torch.bmm(x[..., :INNER_TILE], weight[:, :INNER_TILE])
    for begin in range(INNER_TILE, inner, INNER_TILE):
        end = min(begin + INNER_TILE, inner)
        total += torch.bmm(x[..., begin:end], weight[:, begin:end])
    return total


def group_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See `disagg_kernels.dense.group_linear`."""
    return batched_linear(x.transpose(0, 1), weight).transpose(0, 1)
