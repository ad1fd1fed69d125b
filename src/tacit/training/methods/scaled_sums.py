"""Scale, then privatize: gradients are scaled by what was released before, then clipped."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tacit.privacy.events import AnyEvent
from tacit.training.dp.sampling import Sampler
from tacit.training.methods.independence import Totals
from tacit.training.methods.method import StepStats
from tacit.training.methods.noisy_sums import Drawn_co, NoisySums

_MOMENT = "moment."


class Sizes:
    """How large each entry of a gradient is, as releases say; nothing else is looked at.

    `saw` takes a release of scaled gradients, its scales and the standard deviation of its noise.
    The second moment of an entry is the mean, falling with `beta2`, of the release's square without
    its noise, over the square of the scale. No size is below the root of the mean moment, nor below
    `noise_floor` times the noise: what cannot be told from noise is not scaled up.
    """

    def __init__(self, beta2: float, noise_floor: float) -> None:
        self.beta2, self.noise_floor = beta2, noise_floor
        self.moments: dict[str, Tensor] = {}
        self.seen, self.noise = 0, 0.0

    def saw(self, released: Mapping[str, Tensor], scales: Mapping[str, Tensor], std: float) -> None:
        """One more release."""
        kept, noises, entries = self.beta2, 0.0, 0
        for name, tensor in released.items():
            over = scales[name].square() if name in scales else torch.ones_like(tensor)
            moment = self.moments.setdefault(name, torch.zeros_like(tensor))
            moment.mul_(kept).add_((tensor.square() - std**2) / over, alpha=1 - kept)
            noises, entries = noises + float((std**2 / over).sum()), entries + tensor.numel()
        self.seen += 1
        self.noise = kept * self.noise + (1 - kept) * noises / entries

    def sizes(self) -> dict[str, Tensor]:
        """The size of every entry; nothing before the first release."""
        if not self.seen:
            return {}
        share = 1 - self.beta2**self.seen
        total = sum(float(moment.double().sum()) for moment in self.moments.values())
        mean = total / sum(moment.numel() for moment in self.moments.values()) / share
        floor = max(mean, self.noise_floor**2 * self.noise / share, 1e-20)
        return {n: (moment / share).clamp(min=floor).sqrt() for n, moment in self.moments.items()}

    def scales(self) -> dict[str, Tensor]:
        """One over the sizes, times a constant: a gradient of these sizes stays as long as it is.

        So a clip norm means what it meant before.
        """
        sizes = self.sizes()
        if not sizes:
            return {}
        squares = sum(float(size.double().square().sum()) for size in sizes.values())
        length = math.sqrt(squares / sum(size.numel() for size in sizes.values()))
        return {name: length / size for name, size in sizes.items()}


class ScaledSums(NoisySums[Drawn_co]):
    """Noisy sums of gradients that are scaled before they are clipped.

    *Guarantee*: the scales of a step are made of earlier releases, so they are fixed given those.
    A unit's vector is its scaled gradient, clipped to the same norm, and gets the same noise: a
    step is the release of the same event. What is handed on, the release over scales and sizes, is
    post-processing: the direction of Adam, for an optimizer that keeps no second moment.

    Source: Ganesh, McMahan and Thakurta 2025 (scale-then-privatize). Departs: a floor of its own.
    """

    def __init__(
        self, of_scales: Callable[[Mapping[str, Tensor]], Totals], sizes: Sizes,
        like: Mapping[str, Tensor], sampler: Sampler[Drawn_co], event: AnyEvent, *given: Any,
        **named: Any,
    ) -> None:  # fmt: skip
        super().__init__(sampler, event, self._scaled, *given, **named)
        self._of_scales, self._sizes, self._like = of_scales, sizes, like

    def _scaled(self, step: int, drawn: Any) -> Any:
        return self._of_scales(self._sizes.scales())(step, drawn)

    def gradient(self, step: int) -> tuple[dict[str, Tensor], StepStats]:
        """The direction of Adam, made of this release and those before."""
        scales = self._sizes.scales()
        noisy, stats = super().gradient(step)
        self._sizes.saw(noisy, scales, stats.noise_std)
        noise, entries = 0.0, 0
        for name, size in self._sizes.sizes().items():
            over = size * scales[name] if name in scales else size
            noisy[name].div_(over)
            noise, entries = noise + float(over.double().pow(-2).sum()), entries + over.numel()
        told = stats.noise_std * math.sqrt(noise / entries)
        return noisy, StepStats(
            stats.units, stats.clipped, stats.not_finite, stats.loss, stats.records, told
        )

    def extra_state(self) -> dict[str, Tensor]:
        """The moments, and what they are made of."""
        own = {_MOMENT + name: moment for name, moment in self._sizes.moments.items()}
        about = torch.tensor([self._sizes.seen, self._sizes.noise], dtype=torch.float64)
        return own | {"about": about}

    def load_extra_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on with them."""
        own = {n.removeprefix(_MOMENT): t for n, t in tensors.items() if n.startswith(_MOMENT)}
        self._sizes.moments = own
        seen, self._sizes.noise = tensors["about"].tolist()
        self._sizes.seen = int(seen)

    def depends_on(self) -> list[Tensor]:
        """The scales of all that is trained."""
        scales = self._sizes.scales()
        return [scales.get(name, torch.ones_like(like)) for name, like in self._like.items()]
