"""Images that are resized, sampled or rearranged."""

from collections.abc import Iterator

from tests.rules.case import Case, real, weights

RESIZES = {
    1: ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"),
    2: (
        *("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d"),
        *("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    ),
    3: ("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"),
}


def resize_cases() -> Iterator[Case]:
    for rank, names in RESIZES.items():
        x, size = real(12, 6, *(3, 4, 2)[:rank]), [5, 6, 4][:rank]
        for name in names:
            corners = () if "nearest" in name else (False,)
            yield Case(f"aten.{name}.vec", (x, size, *corners, None), name="size")
            scaled = (x, None, *corners, [2.0] * rank)
            yield Case(f"aten.{name}.vec", scaled, name="factors")
            yield Case(f"aten.{name}.default", (x, size, *corners))


def sample_cases() -> Iterator[Case]:
    images, grid = real(12, 6, 4, 3), real(12, 6, 2, 2)
    for target in ("grid_sampler", "grid_sampler_2d"):
        yield Case(f"aten.{target}.default", (images, grid, 0, 0, False))
    volumes, grid = real(6, 2, 3, 4, 3), real(6, 2, 12, 2, 3)
    yield Case("aten.grid_sampler_3d.default", (volumes, grid, 0, 0, True))
    theta = "aten.affine_grid_generator.default"
    yield Case(theta, (real(12, 2, 3), [12, 3, 4, 6], False))
    yield Case(theta, (real(12, 3, 4), [12, 3, 2, 4, 6], True), name="volumes")


def rearranged_cases() -> Iterator[Case]:
    for leading in ((), (12,), (2, 6)):
        name = f"{len(leading) + 3}-D"
        yield Case("aten.pixel_shuffle.default", (real(*leading, 24, 6, 2), 2), name=name)
        yield Case("aten.pixel_unshuffle.default", (real(*leading, 6, 12, 4), 2), name=name)
    windows = ([2, 3], [1, 1], [1, 0], [1, 2])
    for leading in ((), (12,)):
        name = f"{len(leading) + 3}-D"
        yield Case("aten.im2col.default", (real(*leading, 6, 4, 5), *windows), name=name)
        columns = real(*leading, 36, 10)
        yield Case("aten.col2im.default", (columns, [4, 5], *windows), name=name)
    yield Case("aten.channel_shuffle.default", (real(12, 6, 4, 2), 3))
    yield Case("aten.native_channel_shuffle.default", (weights(12, 6, 4, 2), 3))


def sampling_cases() -> Iterator[Case]:
    yield from resize_cases()
    yield from sample_cases()
    yield from rearranged_cases()
