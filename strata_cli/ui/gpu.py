"""What the card says of itself, through nvidia-ml-py. Without a driver every reading is None and shows as a dash."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

READ_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """One reading; None where the machine does not tell. `used_bytes`: of the card, or of this process without one."""

    used_bytes: int | None = None
    total_bytes: int | None = None
    power_w: float | None = None
    clock_mhz: int | None = None
    temperature_c: int | None = None


NOTHING = Gauges()


class GpuMeter:
    """Reads the gauges at most once a second.

    Args:
        gpu: the card's UUID ("GPU-...", which no CUDA_VISIBLE_DEVICES renumbers) or its index; None on the CPU.
    """

    def __init__(self, gpu: str | int | None, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._read_at: float | None = None
        self._last = NOTHING
        self._gpu = gpu
        self._nvml: Any = None
        self._handle: Any = None
        if gpu is not None:
            self._nvml, self._handle = _open(gpu)

    def read(self) -> Gauges:
        now = self._clock()
        if self._read_at is None or now - self._read_at >= READ_EVERY_S:
            self._read_at = now
            if self._gpu is None:
                self._last = Gauges(used_bytes=process_bytes())
            elif self._nvml is not None:
                self._last = self._gauges()
        return self._last

    def _gauges(self) -> Gauges:
        nvml, handle = self._nvml, self._handle
        memory = _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        milliwatts = _ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return Gauges(
            used_bytes=memory and int(memory.used),
            total_bytes=memory and int(memory.total),
            power_w=None if milliwatts is None else milliwatts / 1000,
            clock_mhz=_ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            temperature_c=_ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        )


def _open(gpu: str | int) -> tuple[Any, Any]:
    """The nvml module and the card's handle, or (None, None) where there is no driver or no such card."""
    import pynvml  # here, since most commands need no driver

    try:
        pynvml.nvmlInit()
        by_name = isinstance(gpu, str)
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu) if by_name else pynvml.nvmlDeviceGetHandleByIndex(gpu)
    except pynvml.NVMLError:
        return None, None
    return pynvml, handle


def _ask(question: Callable[[], Any]) -> Any:
    """The answer, or None: cards differ in what they tell, and no gauge is worth an error."""
    try:
        return question()
    except Exception:
        return None


def process_bytes() -> int | None:
    """Memory this process has in RAM, or None where the system does not say (outside Linux)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
