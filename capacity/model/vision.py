"""Vision towers: exact parameter counts for known model types, and tokens per image."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from capacity.base.data_files import Table, make_row, read_data
from capacity.base.fields import Fields
from capacity.model import vision_towers
from capacity.model.vision_towers import VisionEncoder

TABLE = Path(__file__).with_name("vision_towers.toml")
Size = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Rules for parameter count and run time of a vision tower: a row of `vision_towers.toml`, explained there."""

    keys: Mapping[str, tuple[Size, ...]]
    products: Mapping[str, tuple[Size, ...]] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    kind: Mapping[str, str] = field(default_factory=dict)
    attention: str | None = None
    gated: bool = False
    bias: bool = True
    layer_vectors: int = 4
    head_vectors: int = 0
    positions: tuple[Size, ...] = ()
    vectors: int = 0
    projections: tuple[tuple[str, str], ...]
    projection_bias: bool = True
    repeated: str | None = None
    patches_per_token: tuple[Size, ...] = ()
    image_tokens: str | None = None
    tiles: int | None = None
    cell_pixels: tuple[Size, ...] = ()
    full_layers: str | None = None
    longest_side: str | None = None
    row_tokens: int = 0
    largest_image_tokens: int | None = None
    video_images: int = 0
    pixels: tuple[int, int] = (65_536, 16_777_216)

    def matches(self, tower: Fields) -> bool:
        """Return whether a tower's config has the fields of `needed` and the field values of `kind`."""
        kinds = all(tower.text(key) == kind for key, kind in self.kind.items())
        return kinds and all(map(tower.has, self.needed))


@cache
def _rows() -> Table:
    return read_data(TABLE)


@cache
def find_tower(model_type: str) -> Tower | None:
    """Return the rules for the tower of this model type, or None if it is unknown. Raises MalformedFile."""
    row = _rows().get(model_type)
    if row is None or model_type == "usual":
        return None
    if "like" in row:
        return find_tower(row["like"])
    usual = {"patch_inputs": ("channels", "frames", "patch", "patch"), **row.get("products", {})}
    keys = {**_rows()["usual"], **row.get("keys", {})}
    return make_row(TABLE, model_type, Tower, {**row, "keys": keys, "products": usual})


class _Sizes:
    """Sizes of one vision tower, read from its config; `_Sizes(...)(name)` returns the size called `name`."""

    def __init__(self, form: Tower, config: Fields, tower: Fields, hidden: int) -> None:
        self.form, self.config, self.tower, self.hidden = form, config, tower, hidden

    def __call__(self, name: Size) -> int:
        if isinstance(name, int):
            return name
        match name:
            case "hidden":
                return self.hidden
            case "patches":
                return int(self("image") // self("patch")) ** 2
            case "head":
                return self.tower.count("head_dim", default=self("width") // self("heads"))
            case "shuffled":
                return max(self("inner") // self("width"), 1)
        if name in self.form.products:
            return self.product(self.form.products[name])
        return self._read(self.form.keys[name])

    def product(self, names: tuple[Size, ...]) -> int:
        return math.prod(map(self, names))

    def _read(self, keys: tuple[Size, ...]) -> int:
        names = [key for key in keys if isinstance(key, str)]
        last = next((key for key in keys if isinstance(key, int)), None)
        fields = self.tower
        if names[0].startswith("outer."):
            fields, names = self.config, [names[0].removeprefix("outer.")]
        pair = fields.values.get(names[0])
        if isinstance(pair, list) and pair:  # some configs give sides as pairs
            fields = fields.update({names[0]: pair[0]})
        return fields.count(*names, default=last)


def _params(form: Tower, sizes: _Sizes, mergers: int) -> int:
    width, inner, wide = sizes("width"), sizes("inner"), sizes(form.attention or "width")
    matrices = 3 if form.gated else 2
    biases = 3 * wide + width + (matrices - 1) * inner + width if form.bias else 0
    layer = 4 * width * wide + matrices * width * inner + biases + form.layer_vectors * width
    if form.head_vectors:
        layer += form.head_vectors * sizes("head")
    positions = sizes.product(form.positions) if form.positions else 0
    projector = sum(
        sizes(inputs) * sizes(outputs) + (sizes(outputs) if form.projection_bias else 0)
        for inputs, outputs in form.projections
    )
    norms = 2 * (mergers - 1) * sizes("merged") if mergers > 1 else 0
    outside = sizes("patch_inputs") + positions + form.vectors
    return sizes("layers") * layer + outside * width + mergers * projector + norms


def _encoder(form: Tower, sizes: _Sizes, mergers: int) -> VisionEncoder:
    patch, cell = sizes("patch"), sizes.product(form.cell_pixels) if form.cell_pixels else None
    tokens = None if form.image_tokens is None else sizes(form.image_tokens)
    if form.patches_per_token or tokens is None:
        a_token = sizes.product(form.patches_per_token)
    else:
        a_token = sizes("patches") // tokens
    side = None if form.longest_side is None else sizes(form.longest_side)
    whole = len(sizes.tower.items(form.full_layers) or ()) if form.full_layers else 0
    width, wide = sizes("width"), sizes(form.attention or "width")
    projections = tuple((sizes(inputs), sizes(outputs)) for inputs, outputs in form.projections)
    return VisionEncoder(
        num_layers=sizes("layers"),
        hidden_size=width,
        attention_size=None if wide == width else wide,
        num_heads=sizes("heads"),
        intermediate_size=sizes("inner"),
        patch_inputs=sizes("patch_inputs"),
        patches_per_token=a_token,
        projections=projections * mergers,
        tile_patches=sizes("patches") if form.tiles else None,
        image_tokens=tokens,
        largest_image_tokens=_largest_image_tokens(form, sizes, tokens, a_token, cell, side),
        cell_pixels=cell,
        gated=form.gated,
        windowed_layers=sizes("layers") - whole if whole else 0,
        window_patches=(sizes("window") // patch) ** 2 if form.full_layers else 0,
        video_images=form.video_images,
        pixels=form.pixels,
        longest_side=side,
        row_tokens=form.row_tokens,
    )


def _largest_image_tokens(
    form: Tower, sizes: _Sizes, tokens: int | None, a_token: int, cell: int | None, side: int | None
) -> int:
    """Return the maximum number of tokens of an image, whose size the model's preprocessor limits."""
    stated = form.largest_image_tokens or tokens
    if stated is not None:
        return stated
    if form.tiles is not None:
        return form.tiles * sizes("patches") // a_token
    assert cell is not None
    if side is not None:
        return side // cell * (side // cell + form.row_tokens)
    return form.pixels[1] // cell**2


def vision_tower(config: Fields) -> tuple[int, VisionEncoder | None, tuple[str, ...]]:
    """Return the parameters of tower and projector, the tower's shape, and the names of config sections not counted.

    Towers without a row in `vision_towers.toml` or a function in `vision_towers` are not counted.
    """
    tower = config.section("vision_config")
    if tower is None:
        return 0, None, ()
    if isinstance(tower.values.get("hidden_size"), int):  # some towers have a list
        tower.count("hidden_size")
    text = config.section("text_config", "llm_config") or config  # Qwen2-VL: in the same object
    hidden, model_type = text.count("hidden_size", default=4_096), config.text("model_type")
    form = find_tower(model_type)
    readable = tower.has("hidden_size", "vt_hidden_size")
    if form is not None and readable and form.matches(tower):
        sizes = _Sizes(form, config, tower, hidden)
        mergers = 1 + (len(tower.items(form.repeated) or ()) if form.repeated else 0)
        return _params(form, sizes, mergers), _encoder(form, sizes, mergers), ()
    read = vision_towers.TOWERS.get(model_type)
    found = read(config, tower, hidden) if read is not None and readable else None
    return (0, None, ("vision_config",)) if found is None else (*found, ())


def tokens_of_image(encoder: VisionEncoder, width: int, height: int) -> int | None:
    """Return the tokens of an image of `width` x `height` pixels, or None if they cannot be computed.

    For Qwen's models, an image is scaled to an area between two limits, then its sides are rounded to whole tokens.
    Source: transformers, qwen2_vl `smart_resize`.
    """
    if encoder.image_tokens is not None or encoder.cell_pixels is None:
        return encoder.image_tokens
    if encoder.longest_side is not None:
        return _tokens_within_side(encoder, encoder.cell_pixels, width, height)
    cell, (least, most) = encoder.cell_pixels, encoder.pixels
    across, down = max(round(width / cell), 1), max(round(height / cell), 1)
    area = across * down * cell**2
    if area > most:
        scale = math.sqrt(width * height / most)
        across, down = (max(int(side / scale / cell), 1) for side in (width, height))
    elif area < least:
        scale = math.sqrt(least / (width * height))
        across, down = (math.ceil(side * scale / cell) for side in (width, height))
    return across * down


def _tokens_within_side(encoder: VisionEncoder, cell: int, width: int, height: int) -> int:
    """Return an image's tokens in Pixtral: it is scaled down to the maximum side, and each row adds one token."""
    assert encoder.longest_side is not None
    scale = max(1.0, max(width, height) / encoder.longest_side)
    across, down = (math.ceil(int(side / scale) / cell) for side in (width, height))
    return across * down + down * encoder.row_tokens
