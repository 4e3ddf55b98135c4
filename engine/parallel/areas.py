"""Where the areas of the channels lie in the body of the segment. Pure.

Every rank makes the same plan from the same layout and sizes, so nothing is sent. Areas are whole
pages, which cost memory only once they are touched.
"""

from __future__ import annotations

from engine.parallel.layout.views import Groups

_PAGE_BYTES = 4096


class AreaPlan:
    """Areas one after the other, one for each group of a channel."""

    def __init__(self) -> None:
        """Starts with nothing."""
        self.num_bytes = 0
        self._places: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}

    def add(self, channel: str, groups: Groups, num_bytes: int) -> None:
        """Gives each group of a channel an area.

        Args:
            channel: its purpose.
            groups: members of each group.
            num_bytes: size of one area.
        """
        for members in groups:
            self._places[channel, members] = (self.num_bytes, num_bytes)
            self.num_bytes += -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES

    def find(self, body: memoryview, channel: str, members: tuple[int, ...]) -> memoryview:
        """The area of a group in the mapped body.

        Raises:
            KeyError: the plan has no such group.
        """
        begin, num_bytes = self._places[channel, members]
        return body[begin : begin + num_bytes]
