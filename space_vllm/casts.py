"""Between the wire's bit patterns and the values of a live parameter, exact in both directions or refused."""

import torch

from shared.bits import DTYPES, bits
from shared.errors import IntegrityError

_EXACT: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
    torch.float8_e4m3fn: (torch.float16, torch.bfloat16, torch.float32, torch.float64),
    torch.float8_e5m2: (torch.float16, torch.bfloat16, torch.float32, torch.float64),
}


def holds(live: torch.dtype, wire: str) -> bool:
    """Whether a live parameter of this dtype can hold every number of the wire's dtype."""
    return live == DTYPES[wire] or live in _EXACT.get(DTYPES[wire], ())


def to_live(patterns: torch.Tensor, wire: str, live: torch.dtype) -> torch.Tensor:
    return patterns.view(DTYPES[wire]).to(live)


def to_wire(values: torch.Tensor, wire: str) -> torch.Tensor:
    """Flat patterns. Raises IntegrityError when a value is none of the wire's numbers: no verified one is."""
    dtype = DTYPES[wire]
    if values.dtype == dtype:
        return bits(values)
    if (dtype, values.dtype) == (torch.bfloat16, torch.float32):  # by bits, so that the payloads of NaNs survive
        wide = bits(values)
        patterns, exact = (wide >> 16).to(torch.int16), not (wide & 0xFFFF).any()
    else:
        narrow = values.to(dtype)
        patterns, exact = bits(narrow), torch.equal(bits(narrow.to(values.dtype)), bits(values))
    if not exact:
        raise IntegrityError(f"the live model holds {values.dtype} values that are no {wire} values")
    return patterns
