# SPDX-License-Identifier: Apache-2.0
"""Learning rates that change from step to step."""

from __future__ import annotations

import numpy as np

from choir.tensor import Tensor


class DecayScheduler:
    """A value that changes from step to step. Subclasses define `call`."""

    def __init__(self, init_value: float) -> None:
        self.init_value = init_value

    def __call__(self, step: Tensor) -> Tensor:
        """The value at a step, a tensor of one element, as one of shape (1,)."""
        if not isinstance(step, Tensor):
            raise TypeError(
                f"the step is a {type(step).__name__}; a Tensor is needed (value(step) "
                "takes a number)"
            )
        return self.call(step)

    def call(self, step: Tensor) -> Tensor:
        return scalar(self.value(int(step.item())), step.device)

    def value(self, step: int) -> float:
        """The value at a step as a number."""
        if type(self).call is DecayScheduler.call:
            raise NotImplementedError(f"{type(self).__name__} defines no call")
        return float(self.call(scalar(float(step))))


def scalar(value: float, device=None) -> Tensor:
    return Tensor((1,), device).set_value(value)


class Constant(DecayScheduler):
    """Always the same."""

    def value(self, step: int) -> float:
        return float(self.init_value)


class ExponentialDecay(DecayScheduler):
    """init_value * decay_rate ^ (step / decay_steps); staircase: in whole steps."""

    def __init__(
        self,
        init_value: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
    ) -> None:
        super().__init__(init_value)
        if decay_steps <= 0:
            raise ValueError(
                f"decay_steps is {decay_steps}; needs to be above 0"
            )
        self.decay_steps = decay_steps
        self.decay_rate = decay_rate
        self.staircase = staircase

    def value(self, step: int) -> float:
        times = step / self.decay_steps
        if self.staircase:
            times = step // self.decay_steps
        return float(self.init_value * self.decay_rate**times)


class Cosine(DecayScheduler):
    """From init_value to final_value along half a cosine over `period` steps."""

    def __init__(
        self, init_value: float, period: int, final_value: float = 0.0
    ):
        super().__init__(init_value)
        if period <= 0:
            raise ValueError(f"period is {period}; needs to be above 0")
        self.period = period
        self.final_value = final_value

    def value(self, step: int) -> float:
        share = min(step / self.period, 1.0)
        curve = 0.5 * (1.0 + np.cos(np.pi * share))
        return float(
            self.final_value + (self.init_value - self.final_value) * curve
        )


class Warmup(DecayScheduler):
    """Another schedule, or a number, reached in `steps` steps of linear growth."""

    def __init__(self, schedule, steps: int) -> None:
        schedule = as_schedule(schedule)
        if steps < 0:
            raise ValueError(f"steps is {steps}; needs to be 0 or above")
        super().__init__(schedule.init_value)
        self.schedule = schedule
        self.steps = steps

    def value(self, step: int) -> float:
        factor = min(1.0, (step + 1) / (self.steps + 1))
        return factor * self.schedule.value(step)


def as_schedule(value) -> DecayScheduler:
    return value if isinstance(value, DecayScheduler) else Constant(value)
