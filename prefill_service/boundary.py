"""Where a prompt leaves the state from which another prompt can resume."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryPolicy:
    """At which block ends a prompt stores the state from which another prompt can resume.

    Args:
        every_blocks: Every so many blocks; 0 means nowhere but at the end.
        at_last_block: Also at the last full block of the prompt.
    """

    every_blocks: int = 8
    at_last_block: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """The policy of a setting: `every` block, `every:K` blocks and the last, `last`, `none`.

        Raises:
            ValueError: None of these.
        """
        named = {"every": (1, True), "last": (0, True), "none": (0, False)}
        if text in named:
            every_blocks, at_last_block = named[text]
            return cls(every_blocks=every_blocks, at_last_block=at_last_block)
        word, _, number = text.partition(":")
        if word != "every" or not number.isascii() or not number.isdigit() or int(number) < 1:
            raise ValueError(
                f"boundary states are {text!r}: write every, every:K (K blocks, at least 1), last "
                "or none"
            )
        return cls(every_blocks=int(number))

    def wants(self, end_block: int, num_blocks: int) -> bool:
        """Says whether state is stored behind block `end_block` (1-based) of `num_blocks`."""
        if end_block == num_blocks and self.at_last_block:
            return True
        return self.every_blocks > 0 and end_block % self.every_blocks == 0

    def count(self, first_block: int, num_blocks: int) -> int:
        """States stored behind blocks (first_block, num_blocks]."""
        return sum(self.wants(end, num_blocks) for end in range(first_block + 1, num_blocks + 1))
