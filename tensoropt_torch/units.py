"""Figures and types as people read them."""


def dtype_name(dtype: object) -> str:
    """``torch.bfloat16`` and ``"bfloat16"`` are ``bfloat16``, as in C++ and in files."""
    return str(dtype).removeprefix("torch.")


def format_bytes(count: float) -> str:
    """E.g. ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def format_costs(memory_bytes: float, time_s: float) -> str:
    """E.g. ``1.50 GiB per device, 12.3 ms a step``."""
    return f"{format_bytes(memory_bytes)} per device, {format_seconds(time_s)} a step"


def format_seconds(seconds: float) -> str:
    """E.g. ``12.3 ms``."""
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def format_duration(seconds: float) -> str:
    """What a person waits, e.g. ``1.3 s``, ``42 s`` or ``6 min``."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
