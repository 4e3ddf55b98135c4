"""What a sequence's KV is as bytes: layout, sizes, fingerprint, and the image that travels.

Pure arithmetic; the device side is `engine.kv_pool`. Two parts of a sequence's state:

* what grows with length lives in blocks of `block_tokens` tokens. A block holds, in canonical
  order, the compressed entries of every KV-owning layer (layer by layer, in token order), then
  the index keys of every layer that owns some. One block is one contiguous piece of bytes.
* what does not grow is the state after n tokens: per layer the last `window - 1` KV rows, then
  per compressed layer the raw rows its compressor still needs.

Where the blocks are there but not the state behind them, the state is rebuilt: the last tokens run
once more, see all stored entries and write none (window replay). Their windows begin empty, so a
row of layer l is right from `l * (window - 1)` positions on; whoever replays enough has the bits of
the state that was not stored (`KvLayout.window_replay_tokens`).

Parallel sizes do not enter: any rank of any group can continue any other rank's image.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.config import LayerKind, ModelConfig

LAYOUT_VERSION = 1
Buffer = bytes | bytearray | memoryview

# Up to this many bytes a checkpoint's identity is the digest of all its bytes; above it, of names,
# sizes, headers and both ends of every file.
_FULL_DIGEST_BYTES = 1 << 30
_EDGE_BYTES = 1 << 20


class LayoutError(ValueError):
    """Sizes that do not fit together; the message names both and a way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceImage:
    """KV state of a sequence after `num_tokens` tokens, as bytes that own their memory.

    Attributes:
        num_tokens: Tokens whose KV is here.
        blocks: One payload per full block, `KvLayout.block_bytes` each.
        partial: Entries of the unfinished block, `KvLayout.partial_bytes(num_tokens)`.
        state: Windows and compressor rows, `KvLayout.state_bytes(num_tokens)`.
        replay_from: First token of a window replay, None where there is none. `num_tokens` is then
            a block end, and `state` that after `replay_from` tokens; empty where windows begin.
    """

    num_tokens: int
    blocks: tuple[Buffer, ...]
    partial: Buffer
    state: Buffer
    replay_from: int | None = None

    @property
    def state_tokens(self) -> int:
        """Tokens after which computing goes on."""
        return self.num_tokens if self.replay_from is None else self.replay_from

    @property
    def num_bytes(self) -> int:
        """All bytes of the image."""
        return sum(map(len, self.blocks)) + len(self.partial) + len(self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSlice:
    """Where one KV-owning layer's parts lie in a block, in units of rows of their own width."""

    layer: int
    kind: LayerKind
    ratio: int
    entry_row: int
    entries: int
    index_row: int | None


class KvLayout:
    """Byte layout of blocks and state for one model, block size and element type.

    Attributes:
        block_tokens: Tokens of a block.
        block_bytes: Bytes of a full block.
        slices: One per KV-owning layer, in layer order.
        entry_rows: Rows of `head_dim` elements one block takes.
        window_replay_tokens: Tokens before a block end from which its state can be rebuilt exactly.
        fingerprint: 8 bytes; equal if and only if bytes can be exchanged.
    """

    ELEMENT_BYTES = 4

    def __init__(
        self,
        config: ModelConfig,
        *,
        block_tokens: int,
        quantisers: bool,
        weights_revision: str,
        dispatch_format: str = "float32",
    ) -> None:
        cut = config.clean_cut
        if block_tokens < 1 or block_tokens % cut:
            raise LayoutError(
                f"block_tokens is {block_tokens}, the model's compression ratios call for a "
                f"multiple of {cut}; set block_tokens to {max(cut, block_tokens // cut * cut)}"
            )
        self.config = config
        self.block_tokens = block_tokens
        self.quantisers = quantisers
        self.weights_revision = weights_revision
        self.dispatch_format = dispatch_format
        width, index_width = config.head_dim, config.index_head_dim
        owners = [layer for layer in config.layers if layer.owns_kv]
        entries_total = sum(block_tokens // layer.ratio for layer in owners)
        # Index keys start on a border of both widths, so that either part can be addressed as rows.
        start = _round_up(entries_total * width, _lcm(width, index_width))
        entry_row, index_row = 0, start // index_width
        slices = []
        for layer in owners:
            entries = block_tokens // layer.ratio
            slices.append(
                LayerSlice(
                    layer=layer.index,
                    kind=layer.kind,
                    ratio=layer.ratio,
                    entry_row=entry_row,
                    entries=entries,
                    index_row=index_row if layer.kind is LayerKind.CSA else None,
                )
            )
            entry_row += entries
            if layer.kind is LayerKind.CSA:
                index_row += entries
        elements = _round_up(index_row * index_width, _lcm(width, index_width))
        self.slices = tuple(slices)
        self.block_elements = elements
        self.block_bytes = elements * self.ELEMENT_BYTES
        self.entry_rows = elements // width
        self.index_rows = elements // index_width
        self.window_replay_tokens = window_replay_tokens(config)
        self.fingerprint = hashlib.sha256(
            json.dumps(self.describe(), sort_keys=True, separators=(",", ":")).encode()
        ).digest()[:8]

    def num_blocks(self, num_tokens: int) -> int:
        """Full blocks of a sequence of this length."""
        return num_tokens // self.block_tokens

    def partial_entries(self, part: LayerSlice, num_tokens: int) -> int:
        """Entries of a layer that lie in the unfinished block."""
        return num_tokens % self.block_tokens // part.ratio

    def partial_bytes(self, num_tokens: int) -> int:
        """Bytes of the unfinished block's entries and index keys."""
        elements = 0
        for part in self.slices:
            width = self.config.head_dim
            if part.index_row is not None:
                width += self.config.index_head_dim
            elements += self.partial_entries(part, num_tokens) * width
        return elements * self.ELEMENT_BYTES

    def window_rows(self, num_tokens: int) -> int:
        """KV rows per layer that later tokens can still see in their window."""
        return min(num_tokens, self.config.sliding_window - 1)

    def state_bytes(self, num_tokens: int) -> int:
        """Bytes of windows and compressor rows after this many tokens."""
        config = self.config
        elements = config.num_layers * self.window_rows(num_tokens) * config.head_dim
        for part in self.slices:
            pending = num_tokens % part.ratio
            if part.kind is LayerKind.CSA:
                widths = config.head_dim + config.index_head_dim
                # The previous group's first halves (keys and scores), then the open group's rows.
                previous = part.ratio if num_tokens >= part.ratio else 0
                elements += previous * 2 * widths + pending * 4 * widths
            else:
                elements += pending * 2 * config.head_dim
        return elements * self.ELEMENT_BYTES

    def check(self, image: SequenceImage) -> None:
        """Raises LayoutError if an image's sizes are not those of its number of tokens."""
        n = image.num_tokens
        state_bytes = self.state_bytes(image.state_tokens)
        if image.replay_from is not None:
            self._check_replay(image)
            state_bytes = state_bytes if len(image.state) else 0
        for name, found, wanted in (
            ("number of blocks", len(image.blocks), self.num_blocks(n)),
            ("partial block", len(image.partial), self.partial_bytes(n)),
            ("state", len(image.state), state_bytes),
        ):
            if found != wanted:
                raise LayoutError(f"image of {n} tokens: {name} is {found}, wanted {wanted}")
        for index, block in enumerate(image.blocks):
            if len(block) != self.block_bytes:
                raise LayoutError(
                    f"image of {n} tokens: block {index} has {len(block)} bytes, wanted "
                    f"{self.block_bytes}"
                )

    def _check_replay(self, image: SequenceImage) -> None:
        n, begin = image.num_tokens, image.state_tokens
        if n % self.block_tokens or not 0 < begin < n:
            raise LayoutError(
                f"image of {n} tokens: its replay begins at token {begin}, wanted one inside and "
                f"an end that is a multiple of {self.block_tokens}"
            )
        if not len(image.state) and n - begin < self.window_replay_tokens:
            raise LayoutError(
                f"image of {n} tokens: its replay has {n - begin} tokens, exact windows need "
                f"{self.window_replay_tokens}; begin earlier"
            )

    def describe(self) -> dict[str, Any]:
        """Returns all that changes bytes, as canonical JSON values; parallel sizes do not."""
        config = self.config
        yarn = config.yarn
        # Rows that were rounded on their way to experts give other KV.
        rounded = self.dispatch_format != "float32"
        return {
            **({"dispatch_format": self.dispatch_format} if rounded else {}),
            "schema": "disagg-kv",
            "layout_version": LAYOUT_VERSION,
            "model_type": config.model_type,
            "weights_revision": self.weights_revision,
            "kv_dtype": "float32",
            "kv_scale_mode": "model" if self.quantisers else "none",
            "block_tokens": self.block_tokens,
            "hash_algo": "sha256-cbor",
            "layers": [[layer.kind.value, layer.ratio] for layer in config.layers],
            "kv_heads": 1,
            "head_dim": config.head_dim,
            "index_head_dim": config.index_head_dim,
            "sliding_window": config.sliding_window,
            "rope": {
                "dim": config.rope_head_dim,
                "theta": str(config.rope_theta),
                "compress_theta": str(config.compress_rope_theta),
                "yarn": None
                if yarn is None
                else [
                    str(yarn.factor),
                    str(yarn.beta_fast),
                    str(yarn.beta_slow),
                    yarn.original_length,
                ],
            },
            "components": [
                {"name": "kv", "kind": "block", "bytes": self.block_bytes},
                {"name": "state", "kind": "boundary", "bytes": self.state_bytes(self.block_tokens)},
            ],
            "stored_shard_form": 1,
        }


def window_replay_tokens(config: ModelConfig) -> int:
    """Returns the tokens of a replay after which the state at a clean cut has the right bits.

    With windows that begin empty at token s, what enters layer l is right from position
    `s + l * (window - 1)` on: each layer below sees `window - 1` positions back, and entries are
    stored. The state needs the last `window - 1` rows of every layer, and of CSA layers also the
    raw rows of the group before the cut.
    """
    reach = config.sliding_window - 1
    needed = [
        max(reach, layer.ratio if layer.kind is LayerKind.CSA else 0) for layer in config.layers
    ]
    return max(
        1, *(layer.index * reach + rows for layer, rows in zip(config.layers, needed, strict=True))
    )


def weight_files(directory: Path) -> list[Path]:
    """Returns the safetensors files of a checkpoint directory that has no index, by name.

    Golden values of a test checkpoint lie beside the model and are not part of it.
    """
    paths = sorted(directory.glob("*.safetensors"))
    return [path for path in paths if path.name != "golden.safetensors"]


def weights_revision(directory: Path) -> str:
    """Returns a digest of a checkpoint directory's config and weights, 32 hex digits.

    Checkpoints up to 1 GiB are digested whole; of larger ones names, sizes and both ends of every
    file enter, which tells releases apart without reading hundreds of gigabytes.
    """
    paths = weight_files(directory)
    whole = sum(path.stat().st_size for path in paths) <= _FULL_DIGEST_BYTES
    digest = hashlib.sha256()
    for path in [directory / "config.json", *paths]:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        with path.open("rb") as file:
            if whole or size <= 2 * _EDGE_BYTES:
                while piece := file.read(_EDGE_BYTES):
                    digest.update(piece)
            else:
                digest.update(file.read(_EDGE_BYTES))
                file.seek(-_EDGE_BYTES, 2)
                digest.update(file.read(_EDGE_BYTES))
    return digest.hexdigest()[:32]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _lcm(a: int, b: int) -> int:
    x, y = a, b
    while y:
        x, y = y, x % y
    return a * b // x
