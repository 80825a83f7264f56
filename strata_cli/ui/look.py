"""How a line of the screen is drawn: its width, its characters, its colours, and the numbers in it."""

from dataclasses import dataclass

from rich.text import Text

FULL, COMPACT = 120, 80  # the least columns of the layouts
GOOD, FAIR, BAD = "green", "yellow", "bold red"


@dataclass(frozen=True, slots=True)
class Look:
    """How a frame is drawn: columns, and whether in ASCII alone."""

    width: int
    ascii: bool

    @property
    def dot(self) -> str:
        return " | " if self.ascii else " · "

    @property
    def dash(self) -> str:
        """Stands for a number that is not known."""
        return "-" if self.ascii else "–"

    def plain(self, text: str) -> str:
        """The text in the characters of this look."""
        return text.encode("ascii", "replace").decode() if self.ascii else text


def clip(text: str, look: Look, style: str = "") -> Text:
    """One line, cut at the width."""
    line = Text(look.plain(text), style=style, no_wrap=True, end="\n")
    line.truncate(look.width, overflow="crop" if look.ascii else "ellipsis")
    return line


def join(parts: list[tuple[str, str]], look: Look) -> Text:
    """Styled parts with a dot between them; empty ones are left out."""
    line = Text(no_wrap=True)
    for i, (text, style) in enumerate(part for part in parts if part[0]):
        if i:
            line.append(look.dot, "dim")
        line.append(look.plain(text), style)
    line.truncate(look.width, overflow="crop" if look.ascii else "ellipsis")
    return line


def clock(seconds: float | None, look: Look) -> str:
    """m:ss or h:mm:ss."""
    if seconds is None:
        return look.dash
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def num(value: float | None, look: Look, digits: int = 0) -> str:
    """A number with commas between the thousands."""
    return look.dash if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, look: Look) -> str:
    """A share (0 to 1) in percent."""
    return look.dash if value is None else f"{value:.0%}"


def gib(value: int | None, look: Look) -> str:
    """Bytes in GiB, without the unit."""
    return look.dash if value is None else f"{value / 2**30:.1f}"


def size(value: int | None, look: Look) -> str:
    """Bytes as the screen's GiB, and in MiB with their unit where there is less than one."""
    if value is None or (mib := value / 2**20) >= 1023.5:
        return gib(value, look)
    return f"{num(mib, look, 1 if mib < 9.95 else 0)} MiB"


def rate_style(rate: float | None) -> str:
    """The colour of an acceptance rate."""
    return "dim" if rate is None else GOOD if rate >= 0.6 else FAIR if rate >= 0.3 else BAD
