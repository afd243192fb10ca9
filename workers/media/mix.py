"""Many channels into one, so that speech in any of them is heard.

Knows 16 kHz samples and energies; knows no file and no format.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from protocol.settings import SAMPLE_RATE

Floats = npt.NDArray[np.float32]
Gains = npt.NDArray[np.float64]

_FRAME = 512
BLOCK = 32 * _FRAME
"""Samples that are mixed with one set of gains, about a second. Whole blocks, so the result does not depend on how
the decoder happened to cut its output."""

_MEMORY_BLOCKS = 8
_BAND = slice(300 * _FRAME // SAMPLE_RATE, 3400 * _FRAME // SAMPLE_RATE + 1)
"""FFT bins of the telephone's band. Mains hum and rumble lie below it and have no say."""

_FLIP_CORRELATION = -0.5
_SPEAKS_DB, _STEADY_DB = 6.0, 1.5
_STEADY_GAIN = 0.01
_NOTHING = np.zeros(0, np.float32)


class Mixer:
    """Streams `(samples, channels)` float32 at 16 kHz into one channel; holds back two blocks at most.

    A plain average fails thrice: it cancels a channel that is wired in opposite phase, it makes the one speaking
    channel of eight eight times quieter, and it buries a quiet voice under the channel that only hums. So, from the
    energies within the speech band over the last seconds:

    - a channel that runs against the sum of those before it is turned over;
    - the sum is scaled by what coherence added to it: equal channels count as one of them, and a lone channel,
      or voices that have nothing to do with each other, keep their full level;
    - while some channel rises and falls as speech does, one that stays level is turned down by 40 dB.

    One channel passes unchanged, and two equal ones give that one. Channels that have been equal for the first two
    blocks are one microphone's: nothing of them is held back up to the first sample in which they differ.
    """

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._pending: list[Floats] = []
        self._pending_samples = 0
        self._held: tuple[Floats, Gains] | None = None
        self._signs = np.ones(channels)
        self._last: Gains | None = None
        self._equal = True
        """The channels have not differed yet."""
        self._alike: list[Floats] = []
        """What they have in common, as far as it was not given out."""
        self._alike_samples = 0
        self._ahead = 0
        """Samples that were given out before their block was mixed."""
        self._covariances: deque[npt.NDArray[np.float64]] = deque(maxlen=_MEMORY_BLOCKS)
        self._energies: deque[npt.NDArray[np.float64]] = deque(maxlen=_MEMORY_BLOCKS)

    def push(self, samples: Floats) -> Floats:
        """What can be mixed now, mono; the rest of `samples` waits for the block after it."""
        if self._channels == 1:
            return samples[:, 0]
        alike = self._in_common(samples)
        self._ahead += len(alike)
        self._pending.append(samples)
        self._pending_samples += len(samples)
        return np.concatenate([alike, self._behind(self._whole_blocks())])

    def _in_common(self, samples: Floats) -> Floats:
        """What can be given out at once, because the channels were the same from the first sample on."""
        if self._equal:
            differing = np.flatnonzero(np.any(samples != samples[:, :1], axis=1))
            self._equal = not len(differing)
            common = samples[:, 0] if self._equal else samples[: differing[0], 0]
            self._alike.append(common)
            self._alike_samples += len(common)
        if self._equal and self._alike_samples < 2 * BLOCK:
            return _NOTHING
        given, self._alike = self._alike, []
        return np.concatenate(given) if given and self._alike_samples >= 2 * BLOCK else _NOTHING

    def _behind(self, mixed: Floats) -> Floats:
        """Those of the mixed samples that were not given out before."""
        given = min(self._ahead, len(mixed))
        self._ahead -= given
        return mixed[given:]

    def _whole_blocks(self) -> Floats:
        if self._pending_samples < BLOCK:
            return _NOTHING
        waiting = np.concatenate(self._pending)
        whole = len(waiting) // BLOCK * BLOCK
        self._pending, self._pending_samples = [waiting[whole:]], len(waiting) - whole
        return np.concatenate([self._exchange(waiting[at : at + BLOCK]) for at in range(0, whole, BLOCK)])

    def flush(self) -> Floats:
        """All that was held back. Nothing may be pushed after it."""
        rest = np.concatenate(self._pending) if self._pending_samples else None
        mixed = [self._exchange(rest)] if rest is not None else []
        if self._held is not None:
            block, gains = self._held
            mixed.append(self._mix(block, gains))
        return self._behind(np.concatenate(mixed)) if mixed else _NOTHING

    def _exchange(self, block: Floats) -> Floats:
        """Hold `block` and mix the one held before it, which can now rise in time for what begins in `block`."""
        self._listen(block)
        gains = self._target_gains()
        mixed = _NOTHING
        if self._held is not None:
            before, its_gains = self._held
            mixed = self._mix(before, np.where(np.abs(gains) > np.abs(its_gains), gains, its_gains))
        self._held = block, gains
        return mixed

    def _mix(self, block: Floats, end: Gains) -> Floats:
        """`block` with gains that move from where the last block ended to `end`."""
        start = end if self._last is None else self._last
        ramp = np.linspace(0.0, 1.0, len(block))[:, None]
        mixed: Floats = np.einsum("sc,sc->s", block, start + (end - start) * ramp).astype(np.float32)
        self._last = end
        peak = float(np.max(np.abs(mixed), initial=0.0))
        # Only unrelated loud channels get here; a step in level every second is better than clipping.
        return mixed / np.float32(peak) if peak > 1.0 else mixed

    def _listen(self, block: Floats) -> None:
        """Add the block's energies (frames, channels) and covariance (channels, channels), within the speech band."""
        # An incomplete last frame is left out, for its hard end sounds like speech; unless there is no other.
        whole = block[: len(block) // _FRAME * _FRAME] if len(block) >= _FRAME else _padded(block)
        frames = whole.reshape(-1, _FRAME, self._channels) * np.hanning(_FRAME).astype(np.float32)[None, :, None]
        spectra = np.fft.rfft(frames, axis=1)[:, _BAND]
        # What leaks out of a loud hum into the band comes and goes with its phase but is no speech: 50 dB under the
        # whole, the block's average covers it.
        leak = 1e-5 * _FRAME * np.sum(frames.astype(np.float64) ** 2, axis=(0, 1)) / len(frames)
        self._energies.append(np.sum(np.abs(spectra) ** 2, axis=1) + leak + 1e-6)
        flat = spectra.reshape(-1, self._channels)
        self._covariances.append(np.real(flat.conj().T @ flat).astype(np.float64))

    def _target_gains(self) -> Gains:
        """One signed gain for each channel, from the last blocks."""
        covariance = np.sum(self._covariances, axis=0)
        weights = self._weights()
        self._turn(covariance)
        signed = weights * self._signs
        apart = float(np.sum(weights**2 * np.diag(covariance)))
        together = float(signed @ covariance @ signed)
        coherence = apart / together if together > 0 else 1.0
        return signed * min(1.0, max(coherence, 1.0 / self._channels))

    def _weights(self) -> npt.NDArray[np.float64]:
        """1 for a channel that may hold speech, down to _STEADY_GAIN for one that is level while another speaks."""
        energies = np.concatenate(self._energies)
        rise_db = 10 * np.log10(np.mean(energies, axis=0) / np.percentile(energies, 10, axis=0))
        if np.max(rise_db) < _SPEAKS_DB:
            return np.ones(self._channels)
        return np.asarray(np.interp(rise_db, (_STEADY_DB, _SPEAKS_DB), (_STEADY_GAIN, 1.0)))

    def _turn(self, covariance: npt.NDArray[np.float64]) -> None:
        """Set the signs. Only a clear correlation turns a channel, or back: unrelated ones would flicker."""
        for channel in range(1, self._channels):
            before = self._signs[:channel]
            shared = float(before @ covariance[:channel, channel])
            energy = float(before @ covariance[:channel, :channel] @ before) * covariance[channel, channel]
            correlation = shared / np.sqrt(energy) if energy > 0 else 0.0
            if correlation < _FLIP_CORRELATION:
                self._signs[channel] = -1.0
            elif correlation > -_FLIP_CORRELATION:
                self._signs[channel] = 1.0


def _padded(block: Floats) -> Floats:
    return np.pad(block, ((0, _FRAME - len(block)), (0, 0)))
