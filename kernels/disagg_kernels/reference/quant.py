"""Reference of `disagg_kernels.quant`."""

import torch
import torch.nn.functional as functional

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# A value at a border goes to the even code: 0.25 -> 0, 0.75 -> 1, 1.25 -> 1, 1.75 -> 2, ...
_E2M1_BORDERS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def _pow2_ceil(x: torch.Tensor) -> torch.Tensor:
    """The next power of two, from the bits of float32 (a power of two stays)."""
    bits = x.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32)


def _round_e2m1(x: torch.Tensor) -> torch.Tensor:
    borders = torch.tensor(_E2M1_BORDERS)
    magnitude = x.abs().clamp_(max=6.0).contiguous()
    # `right=False` counts borders strictly below: a value on a border takes the lower code, which
    # is the even one for every other border; the remaining ones are moved up by hand.
    code = torch.bucketize(magnitude, borders)
    on_odd = (magnitude == 0.75) | (magnitude == 1.75) | (magnitude == 3.5)
    code = code + on_odd.int()
    return torch.tensor(_E2M1)[code].copysign(x)


def quantize_dequantize(x: torch.Tensor, fmt: str, block: int) -> torch.Tensor:
    """See `disagg_kernels.quant.quantize_dequantize`."""
    width = x.shape[-1]
    # A last block of fewer channels is legal; zeros do not change its largest magnitude.
    padded = functional.pad(x.float(), (0, -width % block))
    blocks = padded.unflatten(-1, (-1, block))
    amax = blocks.abs().amax(-1, keepdim=True)
    if fmt.startswith("fp8"):
        scale = _pow2_ceil(amax.clamp(min=1e-4) / 448.0)
        codes = (blocks / scale).clamp_(-448.0, 448.0).to(torch.float8_e4m3fn).float()
        return (codes * scale).flatten(-2)[..., :width]
    if block == 32:
        scale = _pow2_ceil(amax.clamp(min=6 * 2.0**-126) / 6.0)
    else:
        scale = (amax.clamp(min=6 * 2.0**-9) / 6.0).to(torch.float8_e4m3fn).float()
    return (_round_e2m1(blocks / scale) * scale).flatten(-2)[..., :width]


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """See `disagg_kernels.quant.hadamard`."""
    width = x.shape[-1]
    out = x
    step = 1
    while step < width:
        pairs = out.unflatten(-1, (-1, 2, step))
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        out = torch.stack([low + high, low - high], -2).flatten(-3)
        step *= 2
    return out * width**-0.5
